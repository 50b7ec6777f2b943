// Promised memory is available, tested in a control group: two runs that do not fit into it
// together (NVLLM_TEST_ROUNDS: repetitions), and a worker that the kernel kills in it.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/backend.h"
#include "device/host_memory.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/testing/worker_group_fixture.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::Program;
using testing::TextFolder;

// A control group with a limit below this process's own. It is removed when it is empty.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::size_t bytes) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line) && folder_.empty();) {
      const bool version1 = line.find(":memory:") != std::string::npos;
      if (!version1 && !line.starts_with("0::")) continue;
      const std::string mount = version1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
      const std::string folder =
          str(mount, line.substr(line.rfind(':') + 1), "/nvllm-test-", ::getpid());
      if (::mkdir(folder.c_str(), 0755) != 0) {
        why_ = str(folder, ": ", errno_text(errno));
        continue;
      }
      folder_ = folder;
      std::ofstream limit(folder + (version1 ? "/memory.limit_in_bytes" : "/memory.max"));
      if (limit << bytes && limit.flush()) continue;
      why_ = folder + ": memory is not limited there";
      remove();
    }
  }
  ~LimitedGroup() { remove(); }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool exists() const { return !folder_.empty(); }
  const std::string& why_not() const { return why_; }
  // The calling process and what it starts.
  bool enter() const {
    std::ofstream processes(folder_ + "/cgroup.procs");
    return static_cast<bool>(processes << ::getpid() << std::flush);
  }

 private:
  void remove() {
    for (int look = 0; look < 100 && !folder_.empty(); ++look) {
      if (::rmdir(folder_.c_str()) == 0) folder_.clear();
      if (!folder_.empty()) ::usleep(10'000);
    }
    folder_.clear();
  }

  std::string folder_, why_ = "no control groups for memory here";
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("of two runs that do not fit together one is refused, and the other goes on") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more memory than this");
  const LimitedGroup group(400 * kMiB);
  if (!group.exists()) SKIP_TEST(group.why_not());
  const TextFolder model;
  std::vector<std::string> words =
      model.arguments("generate", {"--prompt=hi", "--max-tokens=90000", "--ignore-eos"});
  for (std::string& word : words) {
    if (word.starts_with("--kv-cache-memory-bytes")) word = "--kv-cache-memory-bytes=250M";
  }
  const char* const wanted = std::getenv("NVLLM_TEST_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 4;
  for (int round = 0; round < rounds; ++round) {
    const auto enter = [&] {
      if (!group.enter()) ::_exit(testing::kNotAllowed);
    };
    Program one(words, enter), two(words, enter);
    // If both run, memory was promised that does not exist.
    const std::int64_t start = now_ns();
    while (!testing::process_gone(one.pid()) && !testing::process_gone(two.pid())) {
      REQUIRE(seconds_since(start) < 15);
      ::usleep(1000);
    }
    const bool one_ended = testing::process_gone(one.pid());
    Program& refused = one_ended ? one : two;
    Program& other = one_ended ? two : one;
    const int code = refused.wait();
    if (code == testing::kNotAllowed) SKIP_TEST("no process may be moved to a control group");
    const std::string errors = refused.errors();
    INFO(errors);
    CHECK(code == kExitFailed);
    CHECK(errors.find(" MiB") != std::string::npos);
    CHECK(errors.find("died") == std::string::npos);
    ::usleep(50'000);
    other.signal(SIGTERM);
    const int other_code = other.wait();
    INFO(other.errors());
    CHECK(other_code == kExitSignal + SIGTERM);
    CHECK(other.errors().find("died") == std::string::npos);
  }
}

TEST_CASE("what is promised to runs outside of a control group does not count in it") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more memory than this");
  const LimitedGroup group(400 * kMiB);
  if (!group.exists()) SKIP_TEST(group.why_not());
  Ledger ledger;
  const Buffer promised = allocate_host(ledger, MemoryKind::host, 1024 * kMiB, "test", 0);
  const TextFolder model;
  Program program(model.arguments("generate", {"--prompt=hi", "--max-tokens=1"}), [&] {
    if (!group.enter()) ::_exit(testing::kNotAllowed);
  });
  const int code = program.wait();
  if (code == testing::kNotAllowed) SKIP_TEST("no process may be moved to a control group");
  INFO(program.errors());
  CHECK(code == kExitFine);
}

TEST_CASE("a worker that the kernel's OOM killer ends is named with that reason") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more memory than this");
  const LimitedGroup limited(64 * kMiB);
  if (!limited.exists()) SKIP_TEST(limited.why_not());
  const Output output;
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    if (!limited.enter()) ::_exit(testing::kNotAllowed);
    WorkerGroup workers(options_for(output, 2), [](const ipc::Group& group, int rank) {
      if (rank == 0) return wait_for_abort(group, rank);
      ipc::Member me = group.join(rank);
      me.set_phase(ipc::Phase::ready);
      void* const memory =
          ::mmap(nullptr, 256 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      std::memset(memory, 1, 256 * kMiB);
      return 0;
    });
    seconds_until_abort(workers);
    ::_exit(workers.finish());
  }
  int status = 0;
  REQUIRE(::waitpid(launcher, &status, 0) == launcher);
  if (WIFEXITED(status) && WEXITSTATUS(status) == testing::kNotAllowed) {
    SKIP_TEST("no process may be moved to a control group");
  }
  INFO(output.text());
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitDied);
  CHECK(output.says("died: killed by SIGKILL (out of memory: the kernel's OOM killer was at work"));
}

}  // namespace nvllm::launcher
