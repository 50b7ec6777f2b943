// Options: what a command line asks nvllm-launch to do.
//
//   nvllm-launch COMMAND [--name value | --name=value | --switch]...
//   nvllm-launch [--name value | --name=value | --switch]... [PROMPT]      the command is `chat`
//
// A command is one word, or two where several share the first ("bench latency", "bench startup").
// Every command has one table of its options (option_table.h). Parsing, the help, shell completion
// and --config all work from that table.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "cluster/task.h"
#include "device/backend.h"
#include "runtime/options.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// The worker group.
struct GroupOptions {
  std::optional<int> ranks = std::nullopt;          // absent: every GPU, or one rank on the CPU
  int stages = 1;                                   // of a pipeline, each of so many ranks
  std::optional<DeviceKind> device = std::nullopt;  // absent: GPUs where there are any
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  // Which of several tasks of mpirun or srun this is, and what it was started with. Each runs on a
  // box of its own, and the group spans them.
  cluster::Task task = {};
  std::string command_line = "";
};

// Sampling options in the order in which they were given; each sets one field. They are kept apart
// from SamplingParams because the model's own defaults, which are known later, come below them.
using SamplingSettings = std::vector<std::function<void(runtime::SamplingParams&)>>;

inline void apply_sampling(const SamplingSettings& settings, runtime::SamplingParams& params) {
  for (const auto& set : settings) set(params);
}

struct GenerateOptions {
  std::vector<std::vector<std::int32_t>> prompts;  // --prompt-ids
  std::vector<std::string> texts;                  // --prompt
  std::vector<std::string> stop;                   // --stop
  bool stream = false;
  std::string input;   // a file, "-", or empty
  std::string output;  // a file; empty: standard output
  bool resume = false;
  bool overwrite = false;
  bool generation_config = true;  // defaults come from generation_config.json
};

struct ChatOptions {
  bool command = true;                // false: no command was given, at most a prompt
  std::optional<std::string> prompt;  // to be answered; then the program ends
  std::string system;                 // empty: what the chat template says itself
  // --history: absent: a file in the user's state folder; empty: none is kept.
  std::optional<std::string> history = std::nullopt;
  std::vector<std::string> stop = {};  // texts that end an answer
};

// serve; names as vLLM's where vLLM has them
struct ServeOptions {
  std::string host = "127.0.0.1";
  std::int64_t port = 8000;  // 0: any that is free
  std::string uds = "";      // a unix socket instead
  std::string ssl_certfile = "", ssl_keyfile = "";
  std::vector<std::string> api_keys = {};
  std::string api_key_file = "";  // holds more of them, as the variable NVLLM_API_KEY does
  std::vector<std::string> allowed_origins = {"*"};
  std::string root_path = "";                        // a prefix of all paths, "/llm"
  std::vector<std::string> served_model_names = {};  // empty: as --model names it
  std::string chat_template_kwargs = "";             // a JSON object, or empty
  std::string reasoning_parser = "", tool_call_parser = "";
  bool auto_tool_choice = false;
  std::int64_t max_queued_requests = 10000;
  std::int64_t max_queued_tokens = std::int64_t{16} << 20;
  std::int64_t max_request_bytes = std::int64_t{64} << 20;
  std::int64_t max_unsent_bytes = std::int64_t{256} << 10;  // of a stream that nobody reads
  Nanoseconds request_timeout{0};                           // 0: none
  Nanoseconds shutdown_timeout = std::chrono::seconds(25);
  bool restart_workers = true;
  bool exit_when_stdin_closes = false;
  bool log_requests = false;
};

// tokenize, detokenize, template; the chat template of all that have one
struct TextOptions {
  std::string input;               // a file, "-", or empty
  std::vector<std::string> words;  // texts or ids on the command line itself
  std::string chat_template;       // a file; empty: the model's own
  bool special_tokens_in_messages = false;
  // For lines that do not say it themselves.
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
};

// Lengths are drawn from it uniformly, both ends included.
struct LengthRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// How `bench long` keeps the KV cache. chunked: in host memory alone; hybrid: as much of it as fits
// stays on the device as well.
enum class LongMode : std::uint8_t { paged, contiguous, hybrid, chunked, layerwise };
constexpr const char* name_of(LongMode mode) {
  switch (mode) {
    case LongMode::paged: return "paged";
    case LongMode::contiguous: return "contiguous";
    case LongMode::hybrid: return "hybrid";
    case LongMode::chunked: return "chunked";
    case LongMode::layerwise: return "layerwise";
  }
  return "";
}
constexpr bool in_chunks(LongMode mode) {
  return mode == LongMode::chunked || mode == LongMode::hybrid;
}

constexpr std::int64_t kLongOutput = 128;  // --output-len of bench long, where none is given

struct BenchOptions {
  // throughput; also of serve: max_concurrency
  std::int64_t prompts = 256;
  std::optional<std::int64_t> max_concurrency;  // absent: all prompts at once
  bool logprobs_hash = false;

  // latency
  std::vector<std::int64_t> batch_sizes = {1, 8, 64, 256};

  // startup
  std::int64_t repeat = 3;

  // long
  std::vector<LongMode> modes = {LongMode::paged, LongMode::contiguous, LongMode::hybrid,
                                 LongMode::chunked, LongMode::layerwise};
  std::optional<double> link_gb_s;
  bool one_prompt = false;

  // Several of them; absent: the benchmark's own default.
  std::optional<LengthRange> input, output;
  std::uint64_t dataset_seed = 0;
  // Sequences of throughput, decode steps of latency, tokens of long.
  std::optional<std::int64_t> warmup;
  std::optional<double> bandwidth_tb_s, tflops;
};

// A request of `bench serve` is good if it keeps all limits that are set, as in vLLM.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// bench serve: the server, and the load that it gets.
struct BenchServeOptions {
  std::vector<std::string> base_urls;  // empty: http://127.0.0.1:8000
  std::string endpoint = "/v1/completions";
  std::string model;    // its name there; empty: the first that the server lists
  std::string api_key;  // empty: that of the environment

  std::optional<std::int64_t> prompts;
  double duration_s = 0;  // 0: prompts are counted instead
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  std::int64_t vocabulary = 10'001;  // ids of prompts are less than that

  bool ignore_eos = true;
  double temperature = 0;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::string extra_body;  // a JSON object

  GoodputLimits goodput;
  Nanoseconds timeout = std::chrono::seconds(600);
  std::string save_requests;  // a file; empty: none

  bool chat() const { return endpoint.ends_with("/chat/completions"); }
};

// The engine of `bench long` in that mode. Options that say how a mode works hold for that mode
// only.
runtime::EngineOptions options_of_mode(runtime::EngineOptions options, LongMode mode);

// Parsed once, validated, const afterwards.
struct Options {
  std::string command;  // "selftest", "bench long"; empty: there is only `message` to print

  // Shared by several commands.
  GroupOptions group;
  runtime::ModelOptions model;
  std::string model_name;  // as --model names it, or the default one's
  runtime::EngineOptions engine;
  std::map<std::string, std::string> host_cache;  // KV offload options, as they were given
  SamplingSettings sampling;                      // for requests that do not set it themselves
  std::string profile;                            // where the trace goes; empty: there is none
  bool json = false;
  bool memory_report = false;

  // For one command each.
  double selftest_seconds = 0;
  bool inspect_load = false, inspect_checksums = false;
  GenerateOptions generate;
  TextOptions text;
  ChatOptions chat;
  ServeOptions serve;
  BenchOptions bench;
  BenchServeOptions bench_serve;
  std::string shell;  // of completion: bash, zsh, fish

  std::string message;  // what --help or --version prints on standard output
};

// The arguments after the program's name. Throws UsageError (option_value.h).
Options parse_command_line(const std::vector<std::string>& arguments);

}  // namespace nvllm::launcher
