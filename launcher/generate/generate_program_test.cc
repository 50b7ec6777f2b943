// nvllm-launch generate as a program, on the CPU.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "testing/ranks.h"

namespace nvllm::launcher {
namespace {

using testing::file_text;
using testing::generate;
using testing::golden_model;
using testing::Json;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

Json expected(const std::string& model) {
  return parse_json(file_text(golden_model(model) + "/expected.json"));
}

// An input line for a known prompt, which requests as many tokens as are known.
std::string known_line(const Json& prompt) {
  return json_text(Json{{"prompt_token_ids", prompt.at("ids")},
                        {"max_tokens", prompt.at("continuation").size()}}) +
         "\n";
}

// The answers to prompts on the command line.
std::vector<Json> answers(const std::vector<std::string>& words) {
  Program program(words);
  const int exit_code = program.wait();
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  return json_lines(program.output());
}

}  // namespace

TEST_CASE("tokens are those of transformers, on 1 and 2 ranks") {
  const TemporaryFolder folder;
  for (const char* model : {"llama-tied", "qwen3-uneven"}) {
    const Json known = expected(model);
    std::string input;
    for (const Json& prompt : known.at("prompts")) input += known_line(prompt);
    const std::string path = folder.file("in.jsonl", input);
    for (const char* ranks : {"1", "2"}) {
      CAPTURE(std::string(model));
      CAPTURE(std::string(ranks));
      const auto lines = answers(generate(model, {"--dtype", "float32", "--tp", ranks, "--input",
                                                  path, "--temperature", "0", "--ignore-eos"}));
      REQUIRE(lines.size() == known.at("prompts").size());
      for (std::size_t i = 0; i < lines.size(); ++i) {
        CHECK(lines[i].at("token_ids") == known.at("prompts")[i].at("continuation"));
        CHECK(lines[i].at("prompt_token_ids") == known.at("prompts")[i].at("ids"));
        CHECK(lines[i].at("finish_reason") == "length");
        CHECK(lines[i].at("line") == i + 1);
      }
    }
  }
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("an answer ends with the model's end token") {
  const Json prompt = expected("qwen3-gqa-tied").at("prompts")[0];
  const auto at = prompt.at("first_eos").get<std::size_t>();
  const TemporaryFolder folder;
  const auto lines =
      answers(generate("qwen3-gqa-tied", {"--dtype=float32", "--temperature=0", "--input",
                                          folder.file("in", known_line(prompt))}));
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("finish_reason") == "stop");
  CHECK(lines[0].at("token_ids").size() == at + 1);
}

TEST_CASE("prompts of the command line, several answers each, with all that can be told of them") {
  const auto lines =
      answers(generate("llama-tied", {"--prompt-ids=1,2,3", "--prompt-ids", "4", "--n=2",
                                      "--max-tokens=3", "--logprobs=2", "--prompt-logprobs=1"}));
  REQUIRE(lines.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(lines[i].at("line") == i / 2 + 1);
    CHECK(lines[i].at("index") == i % 2);
    CHECK(lines[i].at("token_ids").size() == lines[i].at("logprobs").size());
    CHECK(lines[i].at("logprobs")[0].at("top").size() == 2);
    CHECK(lines[i].at("prompt_logprobs").size() == lines[i].at("prompt_token_ids").size());
    CHECK(lines[i].at("kv_mode") == "paged");
    CHECK(lines[i].at("timings").at("ttft_s") <= lines[i].at("timings").at("total_s"));
  }
}

TEST_CASE("the same run gives the same tokens, another --seed others") {
  const auto run = [](const char* seed) {
    return answers(generate("llama-tied", {"--prompt-ids=1,2,3", "--max-tokens=24", "--seed", seed,
                                           "--ignore-eos"}))
        .at(0)
        .at("token_ids");
  };
  CHECK(run("1") == run("1"));
  CHECK(run("1") != run("2"));
}

TEST_CASE("a configuration is enough with random weights") {
  const auto lines = answers({"generate", "--model", golden_model("llama-tied") + "/config.json",
                              "--load-format=dummy", "--device=cpu", "--tp=2", "--prompt-ids=1,2",
                              "--max-tokens=4", "--ignore-eos"});
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("token_ids").size() == 4);
}

TEST_CASE("bad lines are errors in their place; the others run, and the exit code is 1") {
  const TemporaryFolder folder;
  const std::string input = folder.file("in.jsonl",
                                        "{\"id\": \"a\", \"prompt_token_ids\": [1]}\n"
                                        "nonsense\n"
                                        "\n"
                                        "{\"id\": 4, \"prompt_token_ids\": [2], \"max_token\": 1}\n"
                                        "{\"id\": 5, \"prompt_token_ids\": [99999]}\n"
                                        "{\"id\": 6, \"prompt_token_ids\": [3]}");
  const std::string output = folder.path("out.jsonl");
  Program program(generate(
      "llama-tied", {"--input", input, "--output", output, "--max-tokens=2", "--log-level=error"}));
  CHECK(program.wait() == 1);
  CHECK(program.output() == "");
  CHECK(program.errors() ==
        "nvllm-launch: 3 lines failed; the first, line 2: no valid JSON at column 2\n");
  const auto lines = json_lines(file_text(output));
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].at("id") == "a");
  CHECK(lines[0].contains("token_ids"));
  CHECK(lines[1] == Json{{"line", 2},
                         {"error", "no valid JSON at column 2"},
                         {"request_hash", lines[1].at("request_hash")}});
  CHECK(lines[2].at("line") == 4);
  CHECK(lines[2].at("error") == "max_token: no such field; did you mean 'max_tokens'?");
  CHECK(lines[3].at("id") == 5);
  CHECK(lines[3].at("error").get<std::string>().find("99999") != std::string::npos);
  CHECK(lines[4].at("id") == 6);
  CHECK(lines[4].contains("token_ids"));
}

TEST_CASE("answers keep the input's order, however long they are") {
  const TemporaryFolder folder;
  std::string input;
  for (int i = 0; i < 40; ++i) {
    input += str("{\"id\": ", i, ", \"prompt_token_ids\": [", i + 1,
                 "], \"max_tokens\": ", i % 7 == 0 ? 60 : 1 + i % 3, "}\n");
  }
  const auto lines = answers(generate(
      "llama-tied", {"--input", folder.file("in", input), "--ignore-eos", "--max-num-seqs=8"}));
  REQUIRE(lines.size() == 40);
  for (int i = 0; i < 40; ++i) {
    CHECK(lines[static_cast<std::size_t>(i)].at("id") == i);
    CHECK(lines[static_cast<std::size_t>(i)].at("token_ids").size() ==
          static_cast<std::size_t>(i % 7 == 0 ? 60 : 1 + i % 3));
  }
}

TEST_CASE("a conversation line by line: each answer comes before the next question") {
  std::array<int, 2> fds{};
  REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0);
  UniqueFd reading(fds[0]), writing(fds[1]);
  Program program(generate("llama-tied", {"--input=-", "--max-tokens=2"}),
                  [&] { ::dup2(reading.get(), STDIN_FILENO); });
  for (int question = 1; question <= 3; ++question) {
    const std::string line = str("{\"prompt_token_ids\": [", question, "]}\n");
    REQUIRE(::write(writing.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    const bool answered = testing::await_until(
        [&] { return json_lines(program.output()).size() == static_cast<std::size_t>(question); });
    REQUIRE_MESSAGE(answered, program.errors());
  }
  writing.reset();
  CHECK(program.wait() == 0);
}

TEST_CASE("one line at the end says what was done") {
  Program program(generate("llama-tied", {"--prompt-ids=1,2,3", "--max-tokens=5", "--ignore-eos"}));
  CHECK(program.wait() == 0);
  const std::string errors = program.errors();
  INFO(errors);
  CHECK(errors.find("1 request, 1 answer in ") != std::string::npos);
  CHECK(errors.find(": 3 prompt tokens (0 cached), 5 generated, ") != std::string::npos);
  CHECK(errors.find('\r') == std::string::npos);
}

TEST_CASE("a prompt that is too long for one piece of memory says the option that helps") {
  std::string ids = "1";
  for (int i = 2; i <= 20; ++i) ids += str(',', i);
  Program refused(generate("llama-tied", {"--max-seq-len=20", "--prompt-ids", ids}));
  CHECK(refused.wait() == 1);
  CHECK(refused.errors().find("max_model_len is 20, which leaves no room for an answer; pass "
                              "--max-seq-len 21 or more, or a shorter prompt") !=
        std::string::npos);
  CHECK(answers(generate("llama-tied", {"--max-seq-len=21", "--prompt-ids", ids})).size() == 1);
}

TEST_CASE("a configuration of any name is enough with random weights") {
  const TemporaryFolder folder;
  const std::string config =
      folder.file("tiny.json", file_text(golden_model("llama-tied") + "/config.json"));
  const std::vector<std::string> words = {"generate",     "--model",          config,
                                          "--device=cpu", "--prompt-ids=1,2", "--max-tokens=4",
                                          "--ignore-eos"};
  std::vector<std::string> dummy = words;
  dummy.emplace_back("--load-format=dummy");
  CHECK(answers(dummy).at(0).at("token_ids").size() == 4);
  Program without(words);
  CHECK(without.wait() == 2);
  CHECK(without.errors() == "nvllm-launch: --model " + config +
                                ": is a configuration alone; pass its folder, or --load-format "
                                "dummy\n");
}

TEST_CASE("files that are not there are named") {
  const TemporaryFolder folder;
  for (const auto& [words, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--input=/nowhere/in"}, "--input /nowhere/in: No such file or directory (ENOENT)"},
           {{"--prompt-ids=1", "--output=/nowhere/out"},
            "--output /nowhere/out: No such file or directory (ENOENT)"},
           {{"--prompt-ids=1", "--output=/"}, "--output /: Is a directory (EISDIR)"},
           {{"--prompt-ids=1", "--profile=/nowhere/trace"},
            "writing the trace to /nowhere/trace: No such file or directory (ENOENT)"}}) {
    Program program(generate("llama-tied", words));
    CHECK(program.wait() == 1);
    CHECK(program.errors() == "nvllm-launch: " + message + "\n");
  }
}

TEST_CASE("a profile and a memory report come on the side") {
  const TemporaryFolder folder;
  const std::string profile = folder.path("trace.json");
  Program program(generate(
      "llama-tied", {"--prompt-ids=1,2,3", "--tp=2", "--memory-report", "--profile", profile}));
  CHECK(program.wait() == 0);
  CHECK(json_lines(program.output()).size() == 1);
  CHECK(program.errors().find("memory of the ranks\n") != std::string::npos);
  CHECK(program.errors().find("  host    weights") != std::string::npos);
  CHECK(program.errors().find("device") == std::string::npos);
  CHECK(parse_json(file_text(profile)).size() > 0);
}

}  // namespace nvllm::launcher
