// The options of serve.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kMaxPort = 65535;
constexpr double kMaxSeconds = 1e7;

const Into kIntoServe(&Options::serve);

template <typename Field>
StoreOption text(Field ServeOptions::*field) {
  return [field](Options& options, const OptionValue& value) {
    options.serve.*field = std::string(value.text());
  };
}

std::vector<std::string> origins_of_json(const OptionValue& value) {
  const auto reject = [&] {
    refuse(value.name(), " '", value.text(),
           "': not a JSON list of texts; pass origins with commas between them, or *");
  };
  nlohmann::json list;
  try {
    list = parse_nested_json(value.text(), std::string(value.name()));
  } catch (const BadJson&) {
    reject();
  }
  std::vector<std::string> origins;
  for (const nlohmann::json& origin : list) {
    if (!origin.is_string()) reject();
    origins.push_back(origin.get<std::string>());
  }
  return origins;
}

StoreOption add_text(std::vector<std::string> ServeOptions::*field, const char* what) {
  return [=](Options& options, const OptionValue& value) {
    if (value.text().empty()) refuse(value.name(), " '': pass ", what);
    (options.serve.*field).emplace_back(value.text());
  };
}

// Also as a JSON list, as vLLM has it: '["http://a.example"]'
void store_origins(Options& options, const OptionValue& value) {
  std::vector<std::string> origins;
  std::string_view left = value.text();
  if (left.starts_with('[')) {
    options.serve.allowed_origins = origins_of_json(value);
    return;
  }
  while (!left.empty()) {
    const std::size_t comma = std::min(left.find(','), left.size());
    origins.emplace_back(left.substr(0, comma));
    left.remove_prefix(std::min(comma + 1, left.size()));
  }
  options.serve.allowed_origins = std::move(origins);
}

// "llm/" and "/llm" mean the same.
void store_root_path(Options& options, const OptionValue& value) {
  std::string path(value.text());
  while (!path.empty() && path.back() == '/') path.pop_back();
  if (!path.empty() && path.front() != '/') path.insert(path.begin(), '/');
  options.serve.root_path = path;
}

void store_template_kwargs(Options& options, const OptionValue& value) {
  const std::string given = str(value.name(), " '", shown_text(value.text()), "'");
  constexpr const char* kFix = "; pass an object such as '{\"enable_thinking\": false}'";
  nlohmann::json kwargs;
  try {
    kwargs = parse_nested_json(value.text(), given);
  } catch (const BadJson& error) {
    refuse(error.what(), kFix);
  }
  if (!kwargs.is_object()) refuse(given, ": holds ", kwargs.type_name(), kFix);
  options.serve.chat_template_kwargs = value.text();
}

StoreOption seconds(Nanoseconds ServeOptions::*field) {
  return [field](Options& options, const OptionValue& value) {
    options.serve.*field = value.seconds(0, kMaxSeconds);
  };
}

OptionRows connection_rows() {
  const OptionRows rows = {
      {"--host", "ADDRESS", "where it listens; 0.0.0.0: on all addresses of this machine",
       "127.0.0.1", kIntoServe.path(&ServeOptions::host, "an address, such as 127.0.0.1")},
      {"--port", "N", "the TCP port; 0: any that is free", "8000",
       kIntoServe.whole(&ServeOptions::port, 0, kMaxPort)},
      {"--uds", "PATH", "listens on a unix socket instead", nullptr,
       kIntoServe.path(&ServeOptions::uds, "the path of a socket")},
      {"--ssl-certfile", "FILE", "a certificate chain in PEM form: serves HTTPS", nullptr,
       kIntoServe.path(&ServeOptions::ssl_certfile, "a file with a certificate in PEM form")},
      {"--ssl-keyfile", "FILE", "the certificate's private key, in PEM form", nullptr,
       kIntoServe.path(&ServeOptions::ssl_keyfile, "a file with a private key in PEM form")},
      {"--api-key", "KEY",
       "what clients must send to use /v1; may come repeatedly. The environment\n"
       "variable NVLLM_API_KEY adds one",
       nullptr, add_text(&ServeOptions::api_keys, "a key"), nullptr, true},
      {"--api-key-file", "FILE", "a file with such keys, one in each line", nullptr,
       kIntoServe.path(&ServeOptions::api_key_file, "a file with a key in each line")},
      {"--allowed-origins", "ORIGIN,...", "web pages that may use it from a browser; *: all", "*",
       store_origins},
      {"--root-path", "PATH", "a prefix of all paths, as behind a proxy", nullptr, store_root_path},
  };
  return rows;
}

OptionRows model_file_rows() {
  const OptionRows rows = {
      generation_config_row(),
      {"--trust-remote-code", nullptr,
       "does nothing: no model brings code here; for scripts made for vLLM", nullptr,
       [](Options&, const OptionValue&) {}},
  };
  return rows;
}

OptionRows life_rows() {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const OptionRows rows = {
      {"--max-num-queued-reqs", "N",
       "requests that may wait for their first token; more are answered with\n"
       "503 and Retry-After",
       "10000", kIntoServe.amount(&ServeOptions::max_queued_requests, 1, kMax)},
      {"--max-num-queued-tokens", "N",
       "prompt tokens of requests that may wait for their first token", "16M",
       kIntoServe.amount(&ServeOptions::max_queued_tokens, 1, kMax)},
      {"--max-request-bytes", "BYTES", "the largest body of a request; more is answered with 413",
       "64M", kIntoServe.amount(&ServeOptions::max_request_bytes, 1024, std::int64_t{1} << 32)},
      {"--max-unsent-bytes", "BYTES",
       "what a stream may have waiting for a client that does not read; then\n"
       "its request is dropped",
       "256K", kIntoServe.amount(&ServeOptions::max_unsent_bytes, 1024, std::int64_t{1} << 32)},
      {"--request-timeout", "SECONDS", "ends requests that take longer; 0: none", "0",
       seconds(&ServeOptions::request_timeout)},
      {"--shutdown-timeout", "SECONDS",
       "how long requests that are under way may go on after SIGTERM or Ctrl-C;\n"
       "a second signal ends them at once",
       "25", seconds(&ServeOptions::shutdown_timeout)},
      {"--restart-workers", nullptr,
       "starts the workers again when one has died or is stuck, up to five\n"
       "times in five minutes; over several boxes the server ends instead",
       "on", kIntoServe.on(&ServeOptions::restart_workers), "--no-restart-workers"},
      {"--exit-when-stdin-closes", nullptr,
       "ends everything at once when standard input is closed: for a program\n"
       "that starts a server of its own and holds a pipe to it, and may die",
       "off", kIntoServe.on(&ServeOptions::exit_when_stdin_closes)},
      {"--enable-log-requests", nullptr, "logs a line for each request, at its end", "off",
       kIntoServe.on(&ServeOptions::log_requests), "--disable-log-requests"},
  };
  return rows;
}

void check_serve(const Options& options) {
  check_engine(options);
  const ServeOptions& serve = options.serve;
  if (serve.ssl_certfile.empty() != serve.ssl_keyfile.empty()) {
    refuse(serve.ssl_certfile.empty() ? "--ssl-keyfile" : "--ssl-certfile",
           " alone: TLS needs both; pass --ssl-certfile and --ssl-keyfile");
  }
  check_api(options);
}

// The latency of each stream depends on steps that also prefill other prompts: half of the usual
// tokens per step halves it, at the same throughput.
constexpr std::int64_t kMaxNumBatchedTokens = 4096;

void set_serve_defaults(Options& options) {
  options.engine.max_num_batched_tokens = kMaxNumBatchedTokens;
}

OptionRows serve_engine_rows() {
  OptionRows rows = engine_rows();
  for (OptionRow& row : rows) {
    if (row.name == std::string_view("--max-num-batched-tokens")) row.fallback = "4096";
  }
  return rows;
}

}  // namespace

namespace {

// As vLLM has it: --served-model-name NAME [NAME ...]
OptionRow served_model_name_row() {
  return {.name = "--served-model-name",
          .value = "NAME",
          .help =
              "the model's name in the API; more names may follow, or the option may\n"
              "come repeatedly; the first one is in responses",
          .fallback = "what --model says",
          .store = add_text(&ServeOptions::served_model_names, "a name"),
          .repeats = true,
          .more_words = true};
}

}  // namespace

OptionRows api_rows() {
  const OptionRows rows = {
      served_model_name_row(),
      {"--default-chat-template-kwargs", "JSON",
       "variables of the chat template, for requests that do not set them:\n"
       "'{\"enable_thinking\": false}'",
       nullptr, store_template_kwargs},
      {"--reasoning-parser", "NAME",
       "finds the reasoning in answers: qwen3, deepseek_r1 or\nopenai_gptoss", nullptr,
       text(&ServeOptions::reasoning_parser)},
      {"--tool-call-parser", "NAME",
       "finds tool calls in answers: hermes (Qwen), llama3_json, mistral or\nopenai (gpt-oss)",
       nullptr, text(&ServeOptions::tool_call_parser)},
      {"--enable-auto-tool-choice", nullptr,
       "lets the model decide whether it calls a tool (tool_choice auto)", "off",
       kIntoServe.on(&ServeOptions::auto_tool_choice)},
  };
  return in_group("OpenAI API", rows);
}

void check_api(const Options& options) {
  if (options.serve.auto_tool_choice && options.serve.tool_call_parser.empty()) {
    refuse(
        "--enable-auto-tool-choice: needs to know how the model writes calls; pass "
        "--tool-call-parser hermes, llama3_json, mistral or openai");
  }
}

Command serve_command() {
  return {"serve",
          "serves the OpenAI API, a chat page and metrics over HTTP",
          join_rows({model_rows(), connection_rows(), chat_template_rows(), model_file_rows(),
                     api_rows(), sampling_rows(), life_rows(), serve_engine_rows(), group_rows()}),
          check_serve,
          "[MODEL]",
          store_model_word,
          set_serve_defaults};
}

}  // namespace nvllm::launcher
