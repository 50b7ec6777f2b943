// Command lines of users of other programs: each works as intended, or is rejected with the reason
// and what to use.
#include "launcher/cli/suggestions.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using testing::has;

using Words = std::vector<std::string>;

std::string refusal(const Words& words) {
  return testing::error_of([&] { parse_command_line(words); });
}

TEST_CASE("other tools: words that mean the same do the same") {
  const Options run = parse_command_line({"run", "Qwen/Qwen3-4B", "Why?"});
  CHECK(run.command == "chat");
  CHECK(run.model.path == "Qwen/Qwen3-4B");
  CHECK(run.chat.prompt == "Why?");
  CHECK(parse_command_line({"run", "--model=a"}).model.path == "a");
  const Options after = parse_command_line({"run", "--device", "cpu", "-n", "3", "a.gguf", "Why?"});
  CHECK((after.model.path == "a.gguf" && after.chat.prompt == "Why?"));
  CHECK(parse_command_line({"run", "--tp=2", "--model=a", "Why?"}).chat.prompt == "Why?");
  CHECK(parse_command_line({"run", "--tp=2", "--", "Why?"}).model.path == "");
  CHECK(parse_command_line({"show", "a"}).command == "inspect");
  CHECK(parse_command_line({"info", "a"}).model.path == "a");
  CHECK(parse_command_line({"inspect", "a", "--tp=2"}).model.path == "a");
  CHECK(parse_command_line({"serve", "a", "--port=1"}).model.path == "a");
  CHECK(parse_command_line({"server", "-m", "a", "-c", "4096"}).engine.max_model_len == 4096);
  CHECK(parse_command_line({"start", "a", "-tp", "2"}).group.ranks == 2);
  CHECK(parse_command_line({"run-batch", "-i", "a", "-o", "b"}).generate.output == "b");
  CHECK(parse_command_line({"collect-env"}).command == "doctor");
  CHECK(parse_command_line({"version"}).message == version_line());
  CHECK(parse_command_line({"help", "serve"}).message ==
        parse_command_line({"serve", "--help"}).message);
  CHECK(parse_command_line({"help", "bench", "latency"}).message ==
        parse_command_line({"bench", "latency", "--help"}).message);
  CHECK(parse_command_line({"help", "run"}).message ==
        parse_command_line({"chat", "--help"}).message);
  CHECK(parse_command_line({"serve", "a", "--max_model_len=8k"}).engine.max_model_len == 8000);
  CHECK(parse_command_line({"serve", "a", "--dtype", "half"}).model.dtype ==
        parse_command_line({"serve", "a", "--dtype", "float16"}).model.dtype);
  CHECK(parse_command_line({"serve", "a", "-q", "fp8"}).model.quantization ==
        parse_command_line({"serve", "a", "--quantization", "fp8"}).model.quantization);
  CHECK(parse_command_line({"-"}).chat.prompt == "-");
}

TEST_CASE("other tools: what is not here says why, and what to use") {
  for (const char* const word :
       {"ps", "status", "stop", "list", "ls", "models", "rm", "push", "create", "convert",
        "quantize", "login", "exit", "bye", "complete", "embed", "update"}) {
    const std::string text = refusal({word});
    CHECK_MESSAGE(text.starts_with(std::string("there is no command '") + word + "': "), text);
    CHECK_MESSAGE(text.ends_with(std::string(". As a prompt: nvllm-launch -- ") + word), text);
  }
  const std::pair<const char*, const char*> options[] = {
      {"--load-in-4bit", "--quantization int4"},
      {"--calculate-kv-scales", "--kv-cache-dtype"},
      {"--data-parallel-size", "--port"},
      {"--enable-lora", "merge"},
      {"--speculative-config", "leave it out"},
      {"--enable-chunked-prefill", "always on"},
      {"--tokenizer", "beside the model"},
      {"--download-dir", "HF_HOME"},
      {"--disable-custom-all-reduce", "--collectives nccl"},
      {"--model-path", "--model"},
      {"--tp-size", "--tp"},
      {"--context-length", "--max-model-len"},
      {"--mem-fraction-static", "--gpu-memory-utilization"},
      {"--disable-cuda-graph", "--enforce-eager"},
      {"--temp", "--temperature"},
      {"--ctx-size", "-c N"},
      {"--n-predict", "-n N"},
      {"--repeat-penalty", "--repetition-penalty"},
      {"-ngl", "leave it out"},
      {"--n_gpu_layers", "leave it out"},
      {"--threads", "taskset"},
      {"-t", "--temperature"},
      {"-fa", "always on"},
      {"-b", "--max-num-batched-tokens"},
      {"-np", "--max-num-seqs"},
      {"--no-mmap", "leave it out"},
      {"-f", "standard input"},
      {"-hf", "--model"},
      {"--grammar", "not supported"},
      {"-cnv", "leave it out"},
      {"-v", "--version"},
  };
  for (const auto& [option, fix] : options) {
    const std::string text = refusal({"serve", "a", option, "1"});
    CHECK_MESSAGE(text.starts_with(std::string(option) + ": "), text);
    CHECK_MESSAGE(has(text, fix), text);
  }
}

TEST_CASE("other tools: names of vllm bench serve") {
  const std::pair<const char*, const char*> options[] = {
      {"--host", "--base-url"},       {"--port", "--base-url"},
      {"--backend", "leave it out"},  {"--random-input-len", "--input-len"},
      {"--dataset-name", "leave it"}, {"--random_output_len", "--output-len"},
      {"--seed", "--dataset-seed"},
  };
  for (const auto& [option, fix] : options) {
    const std::string text = refusal({"bench", "serve", option, "1"});
    CHECK_MESSAGE(text.starts_with(std::string(option) + ": "), text);
    CHECK_MESSAGE(has(text, fix), text);
  }
  CHECK(parse_command_line({"serve", "a", "--port", "81"}).serve.port == 81);
}

TEST_CASE("a value in the word of a short option is a word of its own") {
  CHECK(refusal({"generate", "-n2", "--prompt=a"}) ==
        "-n2: a value is a word of its own; pass -n 2");
  CHECK(refusal({"-m/models/a"}) == "-m/models/a: a value is a word of its own; pass -m /models/a");
  CHECK(refusal({"serve", "a", "-tp2"}) == "-tp2: a value is a word of its own; pass -tp 2");
  CHECK(has(refusal({"generate", "-t2"}), "-t2: as --threads"));
  CHECK(has(refusal({"generate", "-np4"}), "-np4: pass --max-num-seqs N"));
  CHECK(refusal({"doctor", "-n2"}) == "unknown option '-n2'; see nvllm-launch doctor --help");
}

TEST_CASE("the beginning of one name is completed first") {
  CHECK(refusal({"serve", "a", "--tensor-parallel", "2"}) ==
        "unknown option '--tensor-parallel'; did you mean '--tensor-parallel-size'?");
  CHECK(refusal({"generate", "--pipeline", "2"}) ==
        "unknown option '--pipeline'; did you mean '--pipeline-parallel-size'?");
  // No name is chosen among several.
  CHECK(completed_name("--max", {"--max-tokens", "--max-model-len"}) == "");
}

TEST_CASE("other tools: no answer stands for what a command does") {
  for (const Command& command : commands()) {
    CHECK(hint_for_command(command.name).empty());
    // Other commands have options of their own with other meanings.
    const std::string name = command.name;
    if (name != "generate" && name != "chat" && name != "serve") continue;
    for (const OptionRow& row : command.rows) {
      const std::string option = row.name,
                        second = row.second_name == nullptr ? "" : row.second_name;
      if (option == "--trust-remote-code") continue;  // serve accepts it for vLLM scripts
      CHECK_MESSAGE(hint_for_option(option).empty(), option);
      CHECK_MESSAGE(hint_for_option(second).empty(), second);
    }
  }
}

TEST_CASE("other tools: only what is near in meaning is suggested") {
  CHECK(refusal({"generate", "-x", "1"}) ==
        "unknown option '-x'; see nvllm-launch generate --help");
  CHECK(refusal({"generate", "--tmp", "1"}) == "unknown option '--tmp'; did you mean '--tp'?");
  CHECK(refusal({"generate", "--yelp"}) == "unknown option '--yelp'; did you mean '--help'?");
  CHECK(has(refusal({"generate", "--kelq"}), "see nvllm-launch generate --help"));
}

}  // namespace
}  // namespace nvllm::launcher
