// Standard output contains results only; and it may be closed by its reader.
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

const std::string kModel = "--model=tests/data/golden-models/llama-tied";

// Arguments for commands that run a model, with one of a few kilobytes.
std::vector<std::string> on_cpu(std::vector<std::string> words) {
  for (const char* const word :
       {"--device=cpu", "--log-level=error", "--kv-cache-memory-bytes=16M"}) {
    words.emplace_back(word);
  }
  words.push_back(kModel);
  return words;
}

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
    {"help", "generate"},
    {"--help=man"},
    {"inspect", kModel, "--device=cpu"},
    {"inspect", kModel, "--device=cpu", "--json"},
    on_cpu({"generate", "--prompt-ids=1,2", "--max-tokens=2"}),
    on_cpu({"bench", "latency", "--batch-size=1", "--input-len=4", "--output-len=2",
            "--bandwidth=0.1", "--tflops=1"}),
    on_cpu({"bench", "throughput", "--num-prompts=2", "--input-len=4", "--output-len=2",
            "--bandwidth=0.1", "--tflops=1"}),
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
    const std::string errors = program.errors();
    CAPTURE(errors);
    CHECK(errors.starts_with("nvllm-launch: "));
    CHECK(errors.ends_with("standard output: No space left on device (ENOSPC)\n"));
  }
}

TEST_CASE("a standard output that is closed is told, and the exit code is 1") {
  for (const auto& words : kCommandLines) {
    CAPTURE(words.front());
    Program program(words, [] { ::close(STDOUT_FILENO); });
    CHECK(program.wait() == 1);
    CHECK(program.errors() ==
          "nvllm-launch: standard output is closed, and results go there; open it, as in >FILE or "
          ">/dev/null\n");
  }
}

TEST_CASE("what goes to a file needs no standard output") {
  Program program(on_cpu({"generate", "--prompt-ids=1,2", "--output=/dev/null"}),
                  [] { ::close(STDOUT_FILENO); });
  CHECK(program.wait() == 0);
  CHECK(program.errors() == "");
}

}  // namespace nvllm::launcher
