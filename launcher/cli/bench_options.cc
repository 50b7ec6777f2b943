#include <algorithm>
#include <limits>

#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kMostSequences = 1'000'000;
constexpr std::int64_t kMostTokens = 10'000'000;
constexpr std::int64_t kMostWarmup = 100'000;
constexpr std::int64_t kMostRepeats = 1000;
constexpr std::int64_t kLongModelLen = 40960;

// "1024" or "100:1024"
LengthRange length_range(const OptionValue& value) {
  const std::string_view text = value.text();
  const std::size_t colon = text.find(':');
  const auto length = [&](std::string_view part) {
    return OptionValue(value.name(), part).whole(1, kMostTokens);
  };
  if (colon == std::string_view::npos) return {length(text), length(text)};
  const LengthRange range{length(text.substr(0, colon)), length(text.substr(colon + 1))};
  if (range.least > range.most) {
    refuse(value.name(), ' ', text, ": ends before it begins; pass ", range.most, ':', range.least);
  }
  return range;
}

void store_prompts(Options& options, const OptionValue& value) {
  options.bench.prompts = value.whole(1, kMostSequences);
}

void store_input(Options& options, const OptionValue& value) {
  options.bench.input = length_range(value);
}

void store_output(Options& options, const OptionValue& value) {
  options.bench.output = length_range(value);
}

void store_concurrency(Options& options, const OptionValue& value) {
  options.bench.max_concurrency = value.whole(1, kMostSequences);
}

void store_dataset_seed(Options& options, const OptionValue& value) {
  options.bench.dataset_seed = value.as<std::uint64_t>(0, std::numeric_limits<std::int64_t>::max());
}

void store_warmup(Options& options, const OptionValue& value) {
  options.bench.warmup = value.whole(0, kMostWarmup);
}

void store_batch_sizes(Options& options, const OptionValue& value) {
  options.bench.batch_sizes.clear();
  for (const std::int32_t size : value.numbers("number of sequences; pass some such as 1,8,64")) {
    if (size < 1) refuse(value.name(), ' ', value.text(), ": a batch has at least one sequence");
    options.bench.batch_sizes.push_back(size);
  }
}

void store_repeat(Options& options, const OptionValue& value) {
  options.bench.repeat = value.whole(1, kMostRepeats);
}

void store_bandwidth(Options& options, const OptionValue& value) {
  options.bench.bandwidth_tb_s = value.real(1e-6, 1e6);
}

void store_tflops(Options& options, const OptionValue& value) {
  options.bench.tflops = value.real(1e-6, 1e9);
}

void store_link(Options& options, const OptionValue& value) {
  options.bench.link_gb_s = value.real(1e-3, 1e6);
}

void store_one_prompt(Options& options, const OptionValue&) {
  options.bench.one_prompt = true;
}

void store_modes(Options& options, const OptionValue& value) {
  options.bench.modes.clear();
  const std::string_view text = value.text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const OptionValue one(value.name(), text.substr(begin, end - begin));
    options.bench.modes.push_back(
        one.one_of<LongMode>("mode", {{"paged", LongMode::paged},
                                      {"contiguous", LongMode::contiguous},
                                      {"hybrid", LongMode::hybrid},
                                      {"chunked", LongMode::chunked},
                                      {"layerwise", LongMode::layerwise}}));
    begin = end + 1;
  }
}

OptionRows floor_rows() {
  return {
      {"--bandwidth", nullptr, "TB/S",
       "what one device reads per second, for the floor: the least time that\n"
       "the work can take",
       "known for the H200, else measured", store_bandwidth},
      {"--tflops", nullptr, "N", "what one device computes per second, for the floor",
       "known for the H200, else measured", store_tflops},
      json_row("prints the result as JSON"),
  };
}

OptionRow dataset_seed_row() {
  return {"--dataset-seed",  nullptr, "N", "what prompts and lengths are drawn from", "0",
          store_dataset_seed};
}

void check_throughput(const Options& options) {
  check_engine(options);
}

void check_one_length(const char* name, const std::optional<LengthRange>& range) {
  if (range && range->least != range->most) {
    refuse(name, ' ', range->least, ':', range->most, ": all sequences are of one length here; ",
           "pass ", name, ' ', range->most);
  }
}

void check_latency(const Options& options) {
  check_engine(options);
  check_one_length("--input-len", options.bench.input);
  check_one_length("--output-len", options.bench.output);
  const auto& sizes = options.bench.batch_sizes;
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest > options.engine.max_num_seqs) {
    refuse("--batch-size ", largest, ": more than run at a time; pass --max-num-seqs ", largest);
  }
}

void check_long(const Options& options) {
  check_one_length("--output-len", options.bench.output);
  if (options.engine.max_seq_len > 0 || options.engine.kv_offload != runtime::KvOffload::off) {
    refuse(
        "bench long runs every mode that --modes names; pass that instead of --kv-offload or "
        "--max-seq-len");
  }
  const std::int64_t longest = options.engine.max_model_len.value_or(kLongModelLen);
  const std::int64_t output = options.bench.output ? options.bench.output->most : kLongOutput;
  if (output >= longest) {
    refuse("--output-len ", output, ": leaves no room for a prompt in --max-model-len ", longest,
           "; pass a smaller one, or a larger --max-model-len");
  }
  const auto& modes = options.bench.modes;
  const bool host_reads = std::any_of(modes.begin(), modes.end(), in_chunks);
  for (const LongMode mode : modes) {
    Options of_mode = options;
    of_mode.engine = options_of_mode(options.engine, mode);
    of_mode.host_cache.clear();  // what one mode has a use for, another has not
    if (!host_reads) of_mode.engine.host_attention = options.engine.host_attention;  // is refused
    check_engine(of_mode);
  }
  if (!options.profile.empty() && options.bench.modes.size() > 1) {
    refuse("--profile ", options.profile, " with ", options.bench.modes.size(),
           " modes: a trace is of one run; pass --modes with one");
  }
}

void check_startup(const Options& options) {
  check_engine(options);
  check_one_length("--input-len", options.bench.input);
  if (options.bench.repeat > 1 && !options.profile.empty()) {
    refuse("--profile ", options.profile, " with --repeat ", options.bench.repeat,
           ": a trace is of one run; pass --repeat 1");
  }
}

Command command(const char* name, const char* summary, OptionRows own,
                void (*check)(const Options&)) {
  return {name, summary, join_rows({model_rows(), own, engine_rows(), group_rows()}), check};
}

}  // namespace

Command bench_throughput_options() {
  return command(
      "bench throughput", "measures tokens per second: many prompts at once",
      join_rows(
          {{{"--num-prompts", nullptr, "N", "how many prompts", "256", store_prompts},
            {"--input-len", nullptr, "N|A:B",
             "tokens of each prompt; A:B: drawn for each, both ends included", "100:1024",
             store_input},
            {"--output-len", nullptr, "N|A:B", "the same of each answer", "100:1024", store_output},
            {"--max-concurrency", nullptr, "N",
             "how many prompts are asked at a time, the next when one ends", "all",
             store_concurrency},
            dataset_seed_row(),
            {"--warmup", nullptr, "N", "how many short prompts run before anything is measured",
             "as many as run at a time", store_warmup}},
           floor_rows()}),
      check_throughput);
}

Command bench_latency_options() {
  return command(
      "bench latency", "measures the time of prompts and of decode steps, batch by batch",
      join_rows({{{"--batch-size", nullptr, "N,N...", "how many sequences run at once",
                   "1,8,64,256", store_batch_sizes},
                  {"--input-len", nullptr, "N", "tokens of each prompt", "1024", store_input},
                  {"--output-len", nullptr, "N",
                   "decode steps that are measured, after the last prompt's first token", "256",
                   store_output},
                  dataset_seed_row(),
                  {"--warmup", nullptr, "N",
                   "decode steps of a batch of other prompts before each measurement; 0: no\n"
                   "such batch",
                   "16", store_warmup}},
                 floor_rows()}),
      check_latency);
}

Command bench_long_options() {
  return command(
      "bench long", "measures one long sequence, however its keys and values are kept",
      join_rows({{{"--modes", nullptr, "MODE,MODE...",
                   "how keys and values are kept, one run for each: paged, contiguous,\n"
                   "layerwise, chunked (all of them come through the ring), or hybrid\n"
                   "(--kv-resident-blocks do not); lengths beyond a model's limit:\n"
                   "--hf-overrides '{\"max_position_embeddings\": 1048576}'",
                   "paged,contiguous,hybrid,chunked,layerwise", store_modes},
                  {"--output-len", nullptr, "N",
                   "tokens of the answer; a prompt before it, and another one that\n"
                   "leaves room for a single token, fill --max-model-len, which is\n"
                   "40960 here unless it is given",
                   "128", store_output},
                  {"--one-prompt", nullptr, nullptr,
                   "measures the time of the prompt before the answer, and no other", nullptr,
                   store_one_prompt},
                  dataset_seed_row(),
                  {"--warmup", nullptr, "N", "tokens of a prompt that comes first; 0: none does",
                   "4096", store_warmup},
                  {"--link", nullptr, "GB/S",
                   "what goes between a device and the host per second, for the floor", "measured",
                   store_link}},
                 floor_rows()}),
      check_long);
}

Command bench_startup_options() {
  return command(
      "bench startup", "measures the time from the start of the program to the first token",
      join_rows({{{"--repeat", nullptr, "N", "how many starts", "3", store_repeat},
                  {"--input-len", nullptr, "N", "tokens of the prompt", "16", store_input},
                  dataset_seed_row()},
                 {json_row("prints the result as JSON")}}),
      check_startup);
}

runtime::EngineOptions options_of_mode(runtime::EngineOptions options, LongMode mode) {
  using runtime::KvOffload;
  if (!options.max_model_len) options.max_model_len = kLongModelLen;
  options.kv_offload = in_chunks(mode)               ? KvOffload::chunked
                       : mode == LongMode::layerwise ? KvOffload::layerwise
                                                     : KvOffload::off;
  if (mode == LongMode::chunked) options.resident_blocks = 0;
  options.max_seq_len = mode == LongMode::contiguous ? *options.max_model_len : 0;
  if (!in_chunks(mode)) options.host_attention = 0.0;
  return options;
}

}  // namespace nvllm::launcher
