// Options: the parsed command line of nvllm-launch.
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
  int stages = 1;                                   // pipeline stages, of `ranks` ranks each
  std::optional<DeviceKind> device = std::nullopt;  // absent: GPUs if there are any
  Nanoseconds step_timeout = std::chrono::seconds(60);
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  // The task of mpirun or srun that this process is, and its command line. Each task runs on a box
  // of its own, and the group spans them.
  cluster::Task task = {};
  std::string command_line = "";
};

// Sampling options in the order given; each sets one field. They are kept apart from SamplingParams
// because they override the model's own defaults, which are known later.
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
  bool command = true;                // false: no command was given, only a prompt at most
  std::optional<std::string> prompt;  // to answer before exiting
  std::string system;                 // empty: the chat template's default
  // --history: absent: a file in the user's state folder; empty: no history.
  std::optional<std::string> history = std::nullopt;
  std::vector<std::string> stop = {};  // stop strings
};

// serve; names are those of vLLM where vLLM has them
struct ServeOptions {
  std::string host = "127.0.0.1";
  std::int64_t port = 8000;  // 0: any free port
  std::string uds = "";      // a unix socket instead
  std::string ssl_certfile = "", ssl_keyfile = "";
  std::vector<std::string> api_keys = {};
  std::string api_key_file = "";  // contains more keys, as does the variable NVLLM_API_KEY
  std::vector<std::string> allowed_origins = {"*"};
  std::string root_path = "";                        // a prefix of all paths, "/llm"
  std::vector<std::string> served_model_names = {};  // empty: the value of --model
  std::string chat_template_kwargs = "";             // a JSON object, or empty
  std::string reasoning_parser = "", tool_call_parser = "";
  bool auto_tool_choice = false;
  std::int64_t max_queued_requests = 10000;
  std::int64_t max_queued_tokens = std::int64_t{16} << 20;
  std::int64_t max_request_bytes = std::int64_t{64} << 20;
  std::int64_t max_unsent_bytes = std::int64_t{256} << 10;  // of a stream whose client does not
                                                            // read
  Nanoseconds request_timeout{0};                           // 0: none
  Nanoseconds shutdown_timeout = std::chrono::seconds(25);
  bool restart_workers = true;
  bool exit_when_stdin_closes = false;
  bool log_requests = false;
};

// tokenize, detokenize, template; chat_template also for other commands
struct TextOptions {
  std::string input;               // a file, "-", or empty
  std::vector<std::string> words;  // texts or ids on the command line itself
  std::string chat_template;       // a file, or the template; empty: the model's own
  bool special_tokens_in_messages = false;
  // Defaults for lines that do not specify them.
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
};

// Lengths are sampled from it uniformly, both ends included.
struct LengthRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// Modes of the KV cache in `bench long`. chunked: in host memory only; hybrid: as much as fits also
// stays on the device.
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

constexpr std::int64_t kLongOutput = 128;  // default of --output-len in bench long

struct BenchOptions {
  // throughput; max_concurrency also for serve
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

  // For several of them; absent: the benchmark's default.
  std::optional<LengthRange> input, output;
  std::uint64_t dataset_seed = 0;
  // Sequences for throughput, decode steps for latency, tokens for long.
  std::optional<std::int64_t> warmup;
  std::optional<double> bandwidth_tb_s, tflops;
};

// A request of `bench serve` is good if it meets all limits that are set, as in vLLM.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// bench serve: the server, and the load.
struct BenchServeOptions {
  std::vector<std::string> base_urls;  // empty: http://127.0.0.1:8000
  std::string endpoint = "/v1/completions";
  std::string model;    // its name on the server; empty: the first that the server lists
  std::string api_key;  // empty: from the environment

  std::optional<std::int64_t> prompts;
  double duration_s = 0;  // 0: limited by the number of prompts instead
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

// The engine options of `bench long` in a mode. Options for one mode apply to that mode only.
runtime::EngineOptions options_of_mode(runtime::EngineOptions options, LongMode mode);

// Parsed once, validated, const afterwards.
struct Options {
  std::string command;  // "selftest", "bench long"; empty: only `message` is to be printed

  // Shared by several commands.
  GroupOptions group;
  runtime::ModelOptions model;
  std::string model_name;  // as given by --model, or the default model's
  runtime::EngineOptions engine;
  std::map<std::string, std::string> host_cache;  // KV offload options as given
  SamplingSettings sampling;                      // for requests that do not set them
  std::string profile;                            // path of the trace; empty: none
  bool json = false;
  bool memory_report = false;

  // Each for one command only.
  double selftest_seconds = 0;
  bool inspect_load = false, inspect_checksums = false;
  GenerateOptions generate;
  TextOptions text;
  ChatOptions chat;
  ServeOptions serve;
  BenchOptions bench;
  BenchServeOptions bench_serve;
  std::string shell;  // of completion: bash, zsh, fish

  std::string message;  // output of --help or --version
};

// Parses the arguments after the program's name. Throws UsageError (option_value.h).
Options parse_command_line(const std::vector<std::string>& arguments);

}  // namespace nvllm::launcher
