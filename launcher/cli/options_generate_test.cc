// The command line of `generate`: its own options, the engine's and those of sampling.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/cli/options.h"

namespace nvllm::launcher {
namespace {

Options parse(std::vector<std::string> words) {
  words.insert(words.begin(), {"generate", "--model", "a"});
  return parse_command_line(words);
}

runtime::SamplingParams sampling(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"--prompt-ids=1"};
  all.insert(all.end(), words.begin(), words.end());
  runtime::SamplingParams params;
  apply_sampling(parse(all).sampling, params);
  return params;
}

runtime::EngineOptions engine(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"--prompt-ids=1"};
  all.insert(all.end(), words.begin(), words.end());
  return parse(all).engine;
}

}  // namespace

TEST_CASE("prompts come from the command line or from a file") {
  const Options prompts = parse({"--prompt-ids", "1,2,3", "--prompt-ids=4"});
  CHECK(prompts.generate.prompts == std::vector<std::vector<std::int32_t>>{{1, 2, 3}, {4}});
  CHECK(prompts.generate.output == "");
  CHECK(prompts.generate.generation_config);
  const Options file =
      parse({"--input=-", "--output", "out", "--resume", "--generation-config=none"});
  CHECK(file.generate.input == "-");
  CHECK(file.generate.output == "out");
  CHECK(file.generate.resume);
  CHECK_FALSE(file.generate.generation_config);
}

TEST_CASE("every option of sampling sets its field") {
  const runtime::SamplingParams params =
      sampling({"--max-tokens=9", "--min-tokens=2", "--n=3", "--temperature=0.5", "--top-p=0.9",
                "--top-k=40", "--min-p=0.1", "--repetition-penalty=1.1", "--presence-penalty=-1",
                "--frequency-penalty=2", "--ignore-eos", "--stop-token-ids=7,8", "--logprobs=0",
                "--prompt-logprobs=4"});
  CHECK(params.max_tokens == 9);
  CHECK(params.min_tokens == 2);
  CHECK(params.n == 3);
  CHECK(params.temperature == 0.5);
  CHECK(params.top_p == 0.9);
  CHECK(params.top_k == 40);
  CHECK(params.min_p == 0.1);
  CHECK(params.repetition_penalty == 1.1);
  CHECK(params.presence_penalty == -1);
  CHECK(params.frequency_penalty == 2);
  CHECK(params.ignore_eos);
  CHECK(params.stop_token_ids == std::vector<std::int32_t>{7, 8});
  CHECK(params.logprobs == 0);
  CHECK(params.prompt_logprobs == 4);
  CHECK_FALSE(sampling({"--max-tokens=none"}).max_tokens.has_value());
}

TEST_CASE("what is not said of sampling stays as it was") {
  runtime::SamplingParams params{.temperature = 0.25, .top_k = 7};
  apply_sampling(parse({"--prompt-ids=1", "--top-k=0"}).sampling, params);
  CHECK(params.temperature == 0.25);
  CHECK(params.top_k == 0);
}

TEST_CASE("every option of the engine sets its field") {
  const runtime::EngineOptions options =
      engine({"--block-size=32", "--gpu-memory-utilization=0.5", "--kv-cache-memory-bytes=512M",
              "--max-model-len=32k", "--max-num-seqs=8", "--max-num-batched-tokens=4K",
              "--no-enable-prefix-caching", "--scheduling=prefill-first", "--preemption=recompute",
              "--swap-space=0.5", "--overlap-rows=2k", "--enforce-eager", "--no-async-scheduling",
              "--tune=full", "--seed=5", "--profile=t"});
  CHECK(options.block_size == 32);
  CHECK(options.gpu_memory_utilization == 0.5);
  CHECK(options.kv_cache_memory_bytes == 512 << 20);
  CHECK(options.max_model_len == 32000);
  CHECK(options.max_num_seqs == 8);
  CHECK(options.max_num_batched_tokens == 4096);
  CHECK_FALSE(options.prefix_caching);
  CHECK(options.scheduling == runtime::Scheduling::prefill_first);
  CHECK(options.preemption == runtime::Preemption::recompute);
  CHECK(options.swap_space_bytes == 512 << 20);
  CHECK(options.overlap_rows == 2000);
  CHECK_FALSE(options.graphs);
  CHECK_FALSE(options.async_scheduling);
  CHECK(options.seed == 5);
  CHECK(options.profile);
}

TEST_CASE("sizes are bytes, thousands or powers of 1024") {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"4096", 4096}, {"4k", 4000}, {"4K", 4096}, {"1.5k", 1500}, {"2M", 2 << 20}, {"1G", 1 << 30}};
  for (const auto& [text, value] : cases) {
    CHECK(engine({"--kv-cache-memory-bytes", text}).kv_cache_memory_bytes == value);
  }
}

TEST_CASE("GEMMs run as earlier runs autotuned them, unless more or nothing is asked for") {
  using runtime::Tuning;
  CHECK(engine({}).tuning == Tuning::cached);
  CHECK(engine({"--tune", "off"}).tuning == Tuning::off);
  CHECK(engine({"--tune", "cached"}).tuning == Tuning::cached);
  CHECK(engine({"--tune", "full"}).tuning == Tuning::full);
}

TEST_CASE("of a switch and its opposite the last one counts") {
  CHECK(engine({"--no-enable-prefix-caching", "--enable-prefix-caching"}).prefix_caching);
  CHECK(engine({"--enforce-eager", "--no-enforce-eager"}).graphs);
  CHECK_FALSE(sampling({"--ignore-eos", "--no-ignore-eos"}).ignore_eos);
}

}  // namespace nvllm::launcher
