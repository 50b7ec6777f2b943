// Standard output: results and nothing else; and nobody who reads them.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "launcher/testing/program.h"

namespace nvllm::launcher {
namespace {

using testing::Program;

const std::vector<std::vector<std::string>> kCommandLines = {
    {"--help"},
    {"--version"},
    {"bench", "--help"},
    {"chat", "--help"},
    {"completion", "bash"},
    {"completion", "fish"},
    {"doctor"},
    {"doctor", "--json"},
    {"selftest", "--device=cpu", "--tp=2", "--log-level=warning"},
};

}  // namespace

TEST_CASE("results are on standard output, and nothing on standard error") {
  for (const auto& words : kCommandLines) {
    CAPTURE(words.front());
    Program program(words);
    CHECK(program.wait() == 0);
    CHECK(program.output() != "");
    CHECK(program.errors() == "");
  }
}

TEST_CASE("a reader who has gone ends every command without a word") {
  for (const auto& words : kCommandLines) {
    CAPTURE(words.front());
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    ::close(ends[0]);
    Program program(words, [&] { ::dup2(ends[1], STDOUT_FILENO); });
    ::close(ends[1]);
    CHECK(program.wait() == 141);
    CHECK(program.errors() == "");
  }
}

TEST_CASE("a full disk is told, and the exit code is 1") {
  for (const auto& words : kCommandLines) {
    CAPTURE(words.front());
    Program program(words, [] { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); });
    CHECK(program.wait() == 1);
    CHECK(program.errors() ==
          "nvllm-launch: writing the results to standard output: No space left on device "
          "(ENOSPC)\n");
  }
}

}  // namespace nvllm::launcher
