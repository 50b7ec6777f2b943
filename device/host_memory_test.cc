#include "device/host_memory.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

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

}  // namespace
}  // namespace nvllm
