#include "device/host_memory.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kGiB = std::size_t{1} << 30;

// A root folder with the files that a test gives it.
class Machine {
 public:
  Machine() {
    const char* folder = std::getenv("TEST_TMPDIR");
    std::string name = std::string(folder ? folder : "/tmp") + "/machine-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) fail_errno(name);
    root_ = name;
    file("proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n");
  }
  ~Machine() { fs::remove_all(root_); }

  Machine& file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
    return *this;
  }
  DeviceMemory memory() const { return host_memory(root_); }

 private:
  std::string root_;
};

TEST_CASE("without control groups the machine's memory counts") {
  const DeviceMemory memory = Machine().memory();
  CHECK(memory.total == 32 * kGiB);
  CHECK(memory.available == 16 * kGiB);
}

TEST_CASE("a control group of version 2 limits it, less what it uses, files aside") {
  Machine machine;
  machine.file("proc/self/cgroup", "0::/\n")
      .file("sys/fs/cgroup/memory.max", "8589934592\n")      // 8 GiB
      .file("sys/fs/cgroup/memory.current", "3221225472\n")  // 3 GiB
      .file("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1073741824\n");
  CHECK(machine.memory().total == 8 * kGiB);
  CHECK(machine.memory().available == 6 * kGiB);
}

TEST_CASE("the limits of the groups above count too") {
  Machine machine;
  machine.file("proc/self/cgroup", "0::/jobs/mine\n")
      .file("sys/fs/cgroup/jobs/mine/memory.max", "max\n")
      .file("sys/fs/cgroup/jobs/memory.max", "4294967296\n")
      .file("sys/fs/cgroup/jobs/memory.current", "4294967290\n");
  CHECK(machine.memory().total == 4 * kGiB);
  CHECK(machine.memory().available == 6);
}

TEST_CASE("a control group of version 1 limits it, also under a path that only the host knows") {
  Machine machine;
  machine.file("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n")
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  CHECK(machine.memory().total == 2 * kGiB);
  CHECK(machine.memory().available == 1 * kGiB);
}

TEST_CASE("a limit above the machine's memory does not raise it") {
  Machine machine;
  machine.file("proc/self/cgroup", "4:memory:/\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  CHECK(machine.memory().total == 32 * kGiB);
  CHECK(machine.memory().available == 16 * kGiB);
}

TEST_CASE("a group that uses more than its limit has nothing left") {
  Machine machine;
  machine.file("proc/self/cgroup", "0::/\n")
      .file("sys/fs/cgroup/memory.max", "1000\n")
      .file("sys/fs/cgroup/memory.current", "2000\n");
  CHECK(machine.memory().available == 0);
}

TEST_CASE("memory that is held counts although nobody touched it") {
  const DeviceMemory memory = host_memory();
  require_host_memory(memory.available / 2, 0, "test");
  CHECK_THROWS_AS(require_host_memory(memory.available / 2, memory.total, "test"), Error);
}

TEST_CASE("a heap that may not grow is an Error that says what was asked, and what for") {
  if (testing::kSanitized) SKIP_TEST("sanitizers reserve more than any limit");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
  rlimit little = before;
  little.rlim_cur = 64 << 20;
  Ledger ledger;
  REQUIRE(::setrlimit(RLIMIT_DATA, &little) == 0);
  std::string why;
  try {
    allocate_host(ledger, MemoryKind::pinned, 256 << 20, "kv cache", 0);
  } catch (const Error& error) {
    why = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_DATA, &before) == 0);
  CHECK(why.starts_with("asked 256 MiB of host memory for 'kv cache', which the system refuses"));
  CHECK(ledger.total(MemoryKind::pinned) == 0);
}

// A /dev/shm of its own, in which nobody else's claims are, and where these disturb nobody. False:
// this machine does not allow it.
bool have_own_shm() {
  const uid_t user = ::geteuid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
}

constexpr int kNotAllowed = 99;

// The result of `body` in a process of its own.
pid_t start_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  return child;
}

int result_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// In a process with a /dev/shm of its own.
int in_own_shm(const std::function<int()>& body) {
  return result_of(start_process([&] { return have_own_shm() ? body() : kNotAllowed; }));
}

// How much of the available memory is left to this process: 1: all.
bool about(std::size_t available, double share, std::size_t all) {
  const double found = static_cast<double>(available) / static_cast<double>(all);
  return found > share - 0.15 && found < share + 0.15;
}

TEST_CASE("memory that another process was promised is not available, touched or not") {
  if (testing::kSanitized) SKIP_TEST("sanitizers touch memory for what is allocated");
  const int result = in_own_shm([] {
    const std::size_t all = host_memory().available;
    std::array<int, 2> told{}, held{};
    if (::pipe(told.data()) != 0 || ::pipe(held.data()) != 0) return 1;
    const pid_t other = start_process([&] {
      ::close(held[1]);
      Ledger ledger;
      const Buffer memory = allocate_host(ledger, MemoryKind::host, all / 2, "test", 0);
      char byte = about(host_memory().available, 0.5, all) ? 1 : 0;
      if (::write(told[1], &byte, 1) != 1) return 1;
      return static_cast<int>(::read(held[0], &byte, 1));
    });
    char own = 0;
    if (::read(told[0], &own, 1) != 1 || own != 1) return 2;
    if (!about(host_memory().available, 0.5, all)) return 3;
    ::close(held[1]);
    if (result_of(other) != 0) return 4;
    return about(host_memory().available, 1, all) ? 0 : 5;
  });
  if (result == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(result == 0);
}

TEST_CASE("of processes that ask at the same time no more get memory than there is") {
  if (testing::kSanitized) SKIP_TEST("sanitizers touch memory for what is allocated");
  constexpr int kProcesses = 8;
  for (int round = 0; round < 10; ++round) {
    const int granted = in_own_shm([] {
      const std::size_t wanted = host_memory().available / 20 * 7;
      std::array<int, 2> go{}, tried{}, end{};
      if (::pipe(go.data()) != 0 || ::pipe(tried.data()) != 0 || ::pipe(end.data()) != 0) return 98;
      std::vector<pid_t> processes;
      for (int i = 0; i < kProcesses; ++i) {
        processes.push_back(start_process([&] {
          ::close(go[1]);
          ::close(end[1]);
          char byte = 0;
          if (::read(go[0], &byte, 1) != 0) return 0;
          Ledger ledger;
          Buffer memory;
          try {
            memory = allocate_host(ledger, MemoryKind::host, wanted, "test", 0);
          } catch (const Error&) {
          }
          // It is held until all have tried.
          if (::write(tried[1], &byte, 1) != 1 || ::read(end[0], &byte, 1) != 0) return 0;
          return memory ? 1 : 0;
        }));
      }
      ::close(go[1]);
      char byte = 0;
      for (int i = 0; i < kProcesses; ++i) {
        if (::read(tried[0], &byte, 1) != 1) return 97;
      }
      ::close(end[1]);
      int sum = 0;
      for (const pid_t process : processes) sum += result_of(process);
      return sum;
    });
    if (granted == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
    CHECK(granted >= 1);
    CHECK(granted <= 3);
  }
}

}  // namespace
}  // namespace nvllm
