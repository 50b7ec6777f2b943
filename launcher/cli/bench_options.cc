// The options of the benchmarks.
#include <algorithm>
#include <limits>

#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kMaxTokens = 10'000'000;
constexpr std::int64_t kMaxWarmup = 100'000;
constexpr std::int64_t kMaxRepeats = 1000;
constexpr std::int64_t kLongModelLen = 40960;

const Into kInto(&Options::bench);

// "1024" or "100:1024"
LengthRange length_range(const OptionValue& value) {
  const std::string_view text = value.text();
  const std::size_t colon = text.find(':');
  const auto length = [&](std::string_view part) {
    return OptionValue(value.name(), part).whole(1, kMaxTokens);
  };
  if (colon == std::string_view::npos) return {length(text), length(text)};
  const LengthRange range{length(text.substr(0, colon)), length(text.substr(colon + 1))};
  if (range.min > range.max) {
    refuse(value.name(), ' ', text, ": ends before it begins; pass ", range.max, ':', range.min);
  }
  return range;
}

void store_batch_sizes(Options& options, const OptionValue& value) {
  options.bench.batch_sizes.clear();
  for (const std::int32_t size : value.numbers("number of sequences; pass some such as 1,8,64")) {
    if (size < 1) refuse(value.name(), ' ', value.text(), ": a batch has at least one sequence");
    options.bench.batch_sizes.push_back(size);
  }
}

void store_modes(Options& options, const OptionValue& value) {
  constexpr LongMode kAll[] = {LongMode::paged, LongMode::contiguous, LongMode::hybrid,
                               LongMode::chunked, LongMode::layerwise};
  std::vector<std::pair<std::string_view, LongMode>> known;
  for (const LongMode mode : kAll) known.emplace_back(name_of(mode), mode);
  options.bench.modes.clear();
  const std::string_view text = value.text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const OptionValue one(value.name(), text.substr(begin, end - begin));
    options.bench.modes.push_back(one.one_of("mode", known));
    begin = end + 1;
  }
}

// --bandwidth, --tflops and --json
OptionRows floor_rows() {
  return {
      {"--bandwidth", "TB/S",
       "memory bandwidth of one device, for the floor: the shortest time that\n"
       "the work can take (roofline)",
       "known for the H200, else measured", kInto.real(&BenchOptions::bandwidth_tb_s, 1e-6, 1e6)},
      {"--tflops", "N", "compute throughput of one device, for the floor",
       "known for the H200, else measured", kInto.real(&BenchOptions::tflops, 1e-6, 1e9)},
      json_row(),
  };
}

void check_one_length(const char* name, const std::optional<LengthRange>& range) {
  if (range && range->min != range->max) {
    refuse(name, ' ', range->min, ':', range->max, ": all sequences are of one length here; ",
           "pass ", name, ' ', range->max);
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
    refuse("bench long runs every mode that --modes names; pass that instead of --kv-offload or ",
           "--max-seq-len");
  }
  const std::int64_t longest = options.engine.max_model_len.value_or(kLongModelLen);
  const std::int64_t output = options.bench.output ? options.bench.output->max : kLongOutput;
  if (output >= longest) {
    refuse("--output-len ", output, ": leaves no room for a prompt in --max-model-len ", longest,
           "; pass a smaller one, or a larger --max-model-len");
  }
  const auto& modes = options.bench.modes;
  const bool host_reads = std::any_of(modes.begin(), modes.end(), in_chunks);
  for (const LongMode mode : modes) {
    Options of_mode = options;
    of_mode.engine = options_of_mode(options.engine, mode);
    of_mode.host_cache.clear();  // an option of one mode is not an error in the others
    if (!host_reads) of_mode.engine.host_attention = options.engine.host_attention;  // is rejected
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

// Most modes of the KV cache do not support pipeline stages.
OptionRows rows_without_stages() {
  OptionRows rows = engine_rows();
  std::erase_if(rows, [](const OptionRow& row) { return row.name == std::string_view("--pp"); });
  return rows;
}

Command command(const char* name, const char* summary, OptionRows own,
                void (*check)(const Options&), OptionRows engine = engine_rows()) {
  return {name, summary, join_rows({model_rows(), own, engine, group_rows()}), check};
}

Command throughput_command() {
  return command(
      "bench throughput", "measures tokens per second: many prompts at once",
      join_rows(
          {{{"--num-prompts", "N", "how many prompts", "256",
             kInto.whole(&BenchOptions::prompts, 1, kMaxBenchRequests)},
            input_row("N|A:B", "tokens of each prompt; A:B: drawn uniformly, both ends included",
                      "100:1024"),
            output_row("N|A:B", "tokens of each answer; A:B: drawn uniformly, both ends included",
                       "100:1024"),
            max_concurrency_row(),
            dataset_seed_row(),
            {"--logprobs-hash", nullptr,
             "also prints a hash of all tokens and their log-probabilities, which takes some\n"
             "time; where it is the same, two runs computed the same bits",
             nullptr, kInto.on(&BenchOptions::logprobs_hash)},
            warmup_row("how many short prompts run before anything is measured",
                       "as many as run at a time")},
           floor_rows()}),
      check_engine);
}

Command latency_command() {
  return command(
      "bench latency", "measures the time of prefill and of decode steps, batch by batch",
      join_rows(
          {{{"--batch-size", "N,N...", "how many sequences run at once", "1,8,64,256",
             store_batch_sizes},
            input_row("N", "tokens of each prompt", "1024"),
            output_row("N", "decode steps that are measured, after the last prefill", "256"),
            dataset_seed_row(),
            warmup_row("decode steps of a batch of other prompts before each measurement; 0:\n"
                       "no such batch",
                       "16")},
           floor_rows()}),
      check_latency);
}

Command long_command() {
  return command(
      "bench long", "measures one long sequence in every way of keeping its KV cache",
      join_rows(
          {{{"--modes", "MODE,MODE...",
             "how the KV cache is kept, one run for each: paged, contiguous,\n"
             "layerwise, chunked (all blocks come through the ring), or hybrid\n"
             "(--kv-resident-blocks stay on the device); for lengths beyond a model's\n"
             "limit pass --hf-overrides '{\"max_position_embeddings\": 1048576}'",
             "paged,contiguous,hybrid,chunked,layerwise", store_modes},
            output_row("N",
                       "tokens of the answer, whose prompt fills the rest of --max-model-len\n"
                       "(unless it is given, 40960 here or the model's limit); another prompt\n"
                       "before it leaves one token free",
                       "128"),
            {"--one-prompt", nullptr,
             "measures the prefill of the prompt with the answer, and no other", nullptr,
             kInto.on(&BenchOptions::one_prompt)},
            dataset_seed_row(),
            warmup_row("tokens of a prompt that comes first; 0: none does", "4096"),
            {"--link", "GB/S", "bandwidth between a device and the host, for the floor", "measured",
             kInto.real(&BenchOptions::link_gb_s, 1e-3, 1e6)}},
           floor_rows()}),
      check_long, rows_without_stages());
}

Command startup_command() {
  return command("bench startup",
                 "measures the time from the start of the program to the first token",
                 {{"--repeat", "N", "how many starts", "3",
                   kInto.whole(&BenchOptions::repeat, 1, kMaxRepeats)},
                  input_row("N", "tokens of the prompt", "16"),
                  dataset_seed_row(),
                  json_row()},
                 check_startup);
}

}  // namespace

OptionRow dataset_seed_row() {
  return {"--dataset-seed", "N", "seed of the prompts and their lengths", "0",
          kInto.whole(&BenchOptions::dataset_seed, 0, std::numeric_limits<std::int64_t>::max())};
}

OptionRow input_row(const char* value, const char* help, const char* fallback) {
  return {"--input-len", value, help, fallback,
          [](Options& o, const OptionValue& v) { o.bench.input = length_range(v); }};
}

OptionRow output_row(const char* value, const char* help, const char* fallback) {
  return {"--output-len", value, help, fallback,
          [](Options& o, const OptionValue& v) { o.bench.output = length_range(v); }};
}

OptionRow warmup_row(const char* help, const char* fallback) {
  return {"--warmup", "N", help, fallback, kInto.whole(&BenchOptions::warmup, 0, kMaxWarmup)};
}

OptionRow max_concurrency_row() {
  return {"--max-concurrency", "N",
          "how many requests are in flight; the next one starts when one ends", "all",
          kInto.whole(&BenchOptions::max_concurrency, 1, kMaxBenchRequests)};
}

std::vector<Command> bench_commands() {
  return {latency_command(), long_command(), bench_serve_command(), startup_command(),
          throughput_command()};
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
