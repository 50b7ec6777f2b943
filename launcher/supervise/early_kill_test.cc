// SIGKILL of the launcher at random moments of its first 20 ms, and right after it has created a
// file in /dev/shm: whatever name remains there, the next start removes it. NVLLM_TEST_KILLS:
// number of tries; default: as many as a few seconds allow.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "launcher/testing/program.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::Program;

const std::vector<std::string> kSelftest = {"selftest", "--device", "cpu", "--tp", "2"};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    all.push_back(entry.path().filename());
  }
  return all;
}

// Waits until `count` files have been created in /dev/shm, at most a second.
class FilesMade {
 public:
  FilesMade() : events_(::inotify_init1(IN_CLOEXEC)) {
    REQUIRE(::inotify_add_watch(events_.get(), "/dev/shm", IN_CREATE) >= 0);
  }
  void await(int files) const {
    std::array<char, 4096> events;
    pollfd polled = {events_.get(), POLLIN, 0};
    while (files > 0 && ::poll(&polled, 1, 1000) > 0) {
      const ssize_t size = ::read(events_.get(), events.data(), events.size());
      for (ssize_t at = 0; at < size; --files) {
        inotify_event event;
        std::memcpy(&event, events.data() + at, sizeof(event));
        at += static_cast<ssize_t>(sizeof(event) + event.len);
      }
    }
  }

 private:
  const UniqueFd events_;
};

}  // namespace

TEST_CASE("a launcher that is killed in its first 20 ms leaves no name behind the next start") {
  // This process and its programs have a /dev/shm of their own.
  if (!testing::mount_own_shm("size=256m")) SKIP_TEST("needs the right to mount a file system");
  const char* const wanted = std::getenv("NVLLM_TEST_KILLS");
  const int tries = wanted != nullptr ? std::atoi(wanted) : 100'000;
  const double seconds = wanted != nullptr ? 3600 : 3.5;
  std::mt19937 random(26);
  std::uniform_int_distribution<unsigned> moment(0, 20'000);
  const std::int64_t start = now_ns();
  int done = 0;
  std::size_t left = 0;
  for (; done < tries && seconds_since(start) < seconds; ++done) {
    const FilesMade made;
    Program program(kSelftest);
    if (done % 2 == 0) {
      ::usleep(moment(random) * (testing::kSanitized ? 10 : 1));
    } else {
      made.await(static_cast<int>(moment(random) % 12 + 1));
    }
    program.signal(SIGKILL);
    program.wait();
    left = std::max(left, names().size());
  }
  MESSAGE(done, " launchers were killed; there were up to ", left, " names");
  // The C library's unfinished files have no owner that could be checked, so they must be a second
  // old.
  ::usleep(1'200'000);
  Program next(kSelftest);
  CHECK(next.wait() == 0);
  CHECK(names() == std::vector<std::string>{});
}

}  // namespace nvllm::launcher
