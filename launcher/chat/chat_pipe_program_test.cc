// Prompts from pipes and from the command line, as in scripts.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {
namespace {

using testing::Program;
using testing::TextFolder;

constexpr Nanoseconds kLimit = std::chrono::seconds(60);

// Runs until exit with the text as standard input.
void give_input(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  ::dup2(::open(path.c_str(), O_RDONLY), STDIN_FILENO);
}

TEST_CASE("a prompt without a command is answered, with figures at the end") {
  const TextFolder model;
  for (const char* const command : {"", "chat"}) {
    Program program(model.arguments(command, {"--tp=2", "--max-tokens=4", "--ignore-eos", "hi!"}));
    CHECK(program.wait() == 0);
    CHECK(program.output().ends_with("\n"));
    CHECK(program.errors().find("4 tokens in ") != std::string::npos);
  }
}

TEST_CASE("lines of standard input are prompts of their own; for chat they are a conversation") {
  const TextFolder model;
  const auto outputs = [&](const char* command, const std::string& input) {
    Program program(model.arguments(command, {"--max-tokens=4", "--ignore-eos", "--temperature=0"}),
                    [&] { give_input(model.path("input"), input); });
    CHECK(program.wait() == 0);
    return program.output();
  };
  const std::string once = outputs("", "hi\n");
  CHECK(!once.empty());
  CHECK(outputs("", "hi\n\nhi") == once + once);
  CHECK(outputs("chat", "hi\n/reset\nhi\n") == once + once);
}

TEST_CASE("many lines are answered together, and written in their order") {
  const TextFolder model;
  std::string input, expected;
  const auto answers = [&](const std::string& lines) {
    Program program(model.arguments("", {"--max-tokens=6", "--ignore-eos", "--temperature=0",
                                         "--dtype=float32", "--max-num-seqs=3"}),
                    [&] { give_input(model.path("input"), lines); });
    CHECK(program.wait() == 0);
    CHECK(program.errors().find("answers, ") != std::string::npos);
    return program.output();
  };
  for (const char* const line : {"hi", "what", "a question of some length", "no"}) {
    const std::string twice = str(line, '\n', line, '\n');
    const std::string both = answers(twice);
    const std::string one = both.substr(0, both.size() / 2);
    REQUIRE(both == one + one);
    input += line + std::string("\n");
    expected += one;
  }
  CHECK(answers(input + input + input) == expected + expected + expected);
}

TEST_CASE("a line comes back before the next one is there") {
  const TextFolder model;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  Program program(model.arguments("", {"--max-tokens=2", "--ignore-eos", "--temperature=0"}),
                  [&] { ::dup2(ends[0], STDIN_FILENO); });
  ::close(ends[0]);
  std::size_t seen = 0;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(::write(ends[1], "hi\n", 3) == 3);
    const std::int64_t end = now_ns() + kLimit.count();
    while ((program.output().size() == seen || !program.output().ends_with('\n')) &&
           now_ns() < end) {
      ::usleep(2000);
    }
    REQUIRE(program.output().size() > seen);
    seen = program.output().size();
  }
  ::close(ends[1]);
  CHECK(program.wait() == 0);
}

TEST_CASE("a line that is too long for the context is told, and the others are answered") {
  const TextFolder model;
  Program program(
      model.arguments("",
                      {"--max-tokens=2", "--ignore-eos", "--temperature=0", "--max-model-len=128"}),
      [&] { give_input(model.path("input"), "hi\n" + std::string(900, 'x') + "\nhi\n"); });
  CHECK(program.wait() == 1);
  const std::string output = program.output();
  CHECK(output.substr(0, output.size() / 2) == output.substr(output.size() / 2));
  CHECK(program.errors().find("1 line failed: line 2: ") != std::string::npos);
  CHECK(program.errors().find("the limit is") != std::string::npos);
}

TEST_CASE("a line that is too long is told in a conversation, too") {
  const TextFolder model;
  Program program(model.arguments("chat", {"--max-tokens=2"}), [&] {
    give_input(model.path("input"), std::string((std::size_t{64} << 20) + 1, 'x') + "\nhi\n");
  });
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("line 1 is longer than 64 MiB; pass shorter ones") !=
        std::string::npos);
}

TEST_CASE("/continue does not repeat what may be the beginning of a stop string") {
  const TextFolder model;
  const auto output = [&](const std::string& input, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--ignore-eos", "--temperature=0", "--repetition-penalty=1.8",
                                      "--dtype=float32", "--log-level=warning"};
    words.insert(words.end(), more.begin(), more.end());
    Program program(model.arguments("chat", words),
                    [&] { give_input(model.path("input"), input); });
    CHECK(program.wait() == 0);
    return program.output();
  };
  int compared = 0;
  for (const char* const tokens : {"--max-tokens=3", "--max-tokens=5", "--max-tokens=6"}) {
    // A stop string that starts with the last character of the first part, and never completes.
    const std::string first = output("what\n", {tokens});
    REQUIRE(first.size() > 1);
    std::size_t at = first.size() - 2;
    while (at > 0 && (static_cast<unsigned char>(first[at]) & 0xC0) == 0x80) --at;
    const std::string held = first.substr(at, first.size() - 1 - at);
    if (held == "\uFFFD") continue;  // half a character
    ++compared;
    const std::string input = "what\n/continue\n/continue\n";
    CHECK(output(input, {tokens, "--stop=" + held + "\001never"}) == output(input, {tokens}));
  }
  CHECK(compared > 0);
}

TEST_CASE("a reader who has gone ends the answers to lines without a word") {
  const TextFolder model;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  Program program(model.arguments("", {"--max-tokens=50", "--ignore-eos", "--log-level=warning"}),
                  [&] {
                    give_input(model.path("input"), "a\nb\nc\nd\n");
                    ::dup2(ends[1], STDOUT_FILENO);
                  });
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(program.wait() == 141);
  CHECK(program.errors() == "");
}

TEST_CASE("a model without a chat template is told, not guessed") {
  const TextFolder model;
  std::filesystem::remove(model.path("chat_template.jinja"));
  Program program(model.arguments("", {"hi!"}));
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("has no chat template; pass one with --chat-template FILE") !=
        std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
