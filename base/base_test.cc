#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/math.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace nvllm {
namespace {

// The standard error of a child process that runs the function, and how it ended.
struct ChildOutput {
  std::string text;
  int status = 0;
};

template <typename Function>
ChildOutput run_in_child(Function function) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);  // not doctest's handler, which reports for the parent
    function();
    _exit(0);
  }
  close(ends[1]);
  const UniqueFd reader(ends[0]);
  ChildOutput output;
  std::array<char, 256> chunk;
  for (ssize_t n; (n = read(reader.get(), chunk.data(), chunk.size())) > 0;) {
    output.text.append(chunk.data(), static_cast<std::size_t>(n));
  }
  REQUIRE(waitpid(child, &output.status, 0) == child);
  return output;
}

}  // namespace

TEST_CASE("division upwards: what is a multiple stays one") {
  CHECK(divide_up(0, 16) == 0);
  CHECK(divide_up(1, 16) == 1);
  CHECK(divide_up(16, 16) == 1);
  CHECK(divide_up(17, 16) == 2);
  CHECK(round_up(std::int64_t{17}, 16) == 32);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(divide_up(kMax, std::uint64_t{1} << 63) == 2);  // no intermediate value overflows
}

TEST_CASE("str prints its parts one after the other") {
  CHECK(str("rank ", 3, " of ", 4.5) == "rank 3 of 4.5");
  CHECK(str().empty());
}

TEST_CASE("bytes and durations are printed with three digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(64 << 20) == "64 MiB");
  CHECK(format_bytes(~std::uint64_t{0}) == "16 EiB");
  CHECK(format_duration(850e-9) == "850 ns");
  CHECK(format_duration(12.34e-6) == "12.3 us");
  CHECK(format_duration(1.25) == "1.25 s");
}

TEST_CASE("an error names the system's reason") {
  errno = ENOENT;
  CHECK_THROWS_WITH_AS(fail_errno("open /x"), "open /x: No such file or directory (ENOENT)", Error);
}

TEST_CASE("context is put before an error's message, and derived errors keep their type") {
  CHECK_THROWS_WITH_AS(with_context("reading a.json", [] { fail("line ", 3); }),
                       "reading a.json: line 3", Error);
  struct Special : Error {
    using Error::Error;
  };
  CHECK_THROWS_WITH_AS(with_context("context", [] { throw Special("as it was"); }), "as it was",
                       Special);
  CHECK(with_context("context", [] { return 5; }) == 5);
}

TEST_CASE("a failed check prints the condition and its values, and aborts") {
  const ChildOutput output = run_in_child([] {
    const int slots = 3;
    NVLLM_CHECK_LE(slots, 2);
  });
  CHECK(WIFSIGNALED(output.status));
  CHECK(WTERMSIG(output.status) == SIGABRT);
  CHECK(output.text.find("slots <= 2: 3 and 2") != std::string::npos);
}

TEST_CASE("a log line holds time, writer, level and text; lower levels are silent") {
  const ChildOutput output = run_in_child([] {
    configure_logging({.level = LogLevel::warning, .who = "rank 7"});
    log_info("not shown");
    log_warning("disk ", 93, "% full");
  });
  REQUIRE(output.text.size() > 13);
  CHECK(output.text.substr(12) == " rank 7 warning disk 93% full\n");
  CHECK(output.text[2] == ':');
  CHECK(output.text[8] == '.');
}

TEST_CASE("a standard error that nobody reads holds up the first line for a moment, and no other") {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const std::string filling(4096, '.');
  while (write(writer.get(), filling.data(), filling.size()) > 0) {
  }
  REQUIRE(fcntl(writer.get(), F_SETFL, 0) == 0);
  const ChildOutput output = run_in_child([&] {
    dup2(writer.get(), STDERR_FILENO);
    alarm(30);  // ends the test if it hangs
    for (int line = 0; line < 1000; ++line) log_error("nobody reads this");
  });
  CHECK(output.status == 0);
}

TEST_CASE("log levels have names, and an unknown one is refused with the choices") {
  CHECK(parse_log_level("debug") == LogLevel::debug);
  CHECK_THROWS_WITH_AS(parse_log_level("loud"),
                       "log level 'loud' is unknown; use debug, info, warning, error or off",
                       Error);
}

TEST_CASE("a unique descriptor closes what it owned") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  UniqueFd moved = std::move(reader);
  moved.reset();
  CHECK(fcntl(ends[0], F_GETFD) == -1);
  CHECK(fcntl(ends[1], F_GETFD) != -1);
}

TEST_CASE("the clock does not go back") {
  std::int64_t last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = now_ns();
    CHECK(now >= last);
    last = now;
  }
}

}  // namespace nvllm
