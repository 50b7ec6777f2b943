#include "base/system_files.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm {

TEST_CASE(
    "a file of a process that ends before it is read has nothing, like one that is not there") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::string path = str("/proc/", child, "/stat");
  CHECK(system_text(path).starts_with(str(child, " (")));
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(system_text(path) == "");
  // This file can still be opened, but not read.
  CHECK(system_text(str("/proc/self/fd/", file.get())) == "");
  CHECK(number_after(str("/proc/self/fd/", file.get()), "x") == std::nullopt);
}

TEST_CASE("a process's control groups for memory") {
  const auto groups = memory_groups(
      "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n3:freezer,memory:/\n0::/jobs/mine/\nnothing\n");
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].path == "/docker/abc");
  CHECK_FALSE(groups[0].version2);
  CHECK(groups[1].path == "");
  CHECK(groups[2].path == "/jobs/mine");
  CHECK(groups[2].version2);
}

}  // namespace nvllm
