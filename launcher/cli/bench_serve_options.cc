// The options of bench serve. Names and meanings are those of `vllm bench serve` where it has them.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

constexpr double kMaxRate = 1e6;
constexpr double kMaxMilliseconds = 1e9;

const Into kInto(&Options::bench_serve);

void store_base_url(Options& options, const OptionValue& value) {
  const std::string_view url = value.text();
  if (!url.starts_with("http://") && !url.starts_with("unix:")) {
    refuse(value.name(), " '", url, "': pass http://HOST:PORT or unix:/PATH of a server");
  }
  options.bench_serve.base_urls.emplace_back(url);
}

void store_endpoint(Options& options, const OptionValue& value) {
  const std::string_view path = value.text();
  const bool fine =
      std::all_of(path.begin(), path.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!path.starts_with('/') || !path.ends_with("/completions") || !fine) {
    refuse(value.name(), " '", path, "': pass /v1/completions or /v1/chat/completions");
  }
  options.bench_serve.endpoint = path;
}

void store_api_key(Options& options, const OptionValue& value) {
  const std::string_view key = value.text();
  const bool fine = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (key.empty() || !fine) refuse(value.name(), ": is sent in a header; pass printable ASCII");
  options.bench_serve.api_key = key;
}

void store_request_rate(Options& options, const OptionValue& value) {
  options.bench_serve.request_rate =
      value.text() == "inf" ? std::numeric_limits<double>::infinity() : value.real(1e-6, kMaxRate);
}

void store_extra_body(Options& options, const OptionValue& value) {
  nlohmann::json json;
  try {
    json = parse_json(value.text());
  } catch (const nlohmann::json::exception&) {
    refuse(value.name(), " '", value.text(), "': no valid JSON");
  }
  if (!json.is_object()) refuse(value.name(), " '", value.text(), "': pass an object of fields");
  for (const char* ours :
       {"prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "n"}) {
    if (json.contains(ours)) {
      refuse(value.name(), ": ", ours, " is set by the benchmark; leave it out");
    }
  }
  options.bench_serve.extra_body = value.text();
}

// "ttft:200,tpot:20"
void store_goodput(Options& options, const OptionValue& value) {
  constexpr std::pair<std::string_view, std::optional<double> GoodputLimits::*> kLimits[] = {
      {"ttft", &GoodputLimits::ttft_ms},
      {"tpot", &GoodputLimits::tpot_ms},
      {"e2el", &GoodputLimits::e2el_ms}};
  const std::string_view text = value.text();
  GoodputLimits limits;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view one = text.substr(begin, end - begin);
    const std::size_t colon = one.find(':');
    const auto* const found =
        std::find_if(std::begin(kLimits), std::end(kLimits),
                     [&](const auto& limit) { return limit.first == one.substr(0, colon); });
    if (found == std::end(kLimits) || colon == std::string_view::npos) {
      refuse(value.name(), " '", text, "': '", one, "' is no limit; pass some such as ",
             "ttft:200,tpot:20,e2el:5000, in milliseconds");
    }
    limits.*found->second =
        OptionValue(value.name(), one.substr(colon + 1)).real(0, kMaxMilliseconds);
    begin = end + 1;
  }
  options.bench_serve.goodput = limits;
}

void check_serve(const Options& options) {
  const BenchServeOptions& serve = options.bench_serve;
  if (serve.duration_s > 0 && serve.prompts) {
    refuse("--duration ", serve.duration_s, " with --num-prompts ", *serve.prompts,
           ": pass one of them");
  }
  const bool endless = serve.request_rate == std::numeric_limits<double>::infinity();
  if (serve.duration_s > 0 && endless && !options.bench.max_concurrency) {
    refuse("--duration ", serve.duration_s,
           ": sends without end; pass --max-concurrency or --request-rate, too");
  }
}

OptionRows server_rows() {
  return {
      {"--base-url", "URL",
       "a server, http://HOST:PORT or unix:/PATH; may come repeatedly: requests\n"
       "go to one after the other",
       "http://127.0.0.1:8000", store_base_url, nullptr, true},
      {"--endpoint", "PATH",
       "/v1/completions: prompts are random token ids; /v1/chat/completions:\n"
       "as many common words, whose tokens the server counts",
       "/v1/completions", store_endpoint},
      {"--model", "NAME", "the model's name on the server", "the first that the server lists",
       kInto.path(&BenchServeOptions::model, "the model's name on the server")},
      {"--api-key", "KEY", "sent as Authorization: Bearer KEY", "OPENAI_API_KEY of the environment",
       store_api_key},
      {"--timeout", "SECONDS", "the longest silence of a server before a request has failed", "600",
       [](Options& o, const OptionValue& v) { o.bench_serve.timeout = v.seconds(0.001, 1e6); }},
  };
}

OptionRows load_rows() {
  return {
      {"--request-rate", "N|inf",
       "requests per second, which arrive as a Poisson process; inf: all of\n"
       "them at once",
       "inf", store_request_rate},
      {"--burstiness", "N",
       "1: a Poisson process; otherwise the gaps have a gamma distribution:\n"
       "less than 1 is burstier, more is more even",
       "1", kInto.real(&BenchServeOptions::burstiness, 1e-3, 1e6)},
      max_concurrency_row(),
      {"--num-prompts", "N", "how many requests", "256",
       kInto.whole(&BenchServeOptions::prompts, 1, kMaxBenchRequests)},
      {"--duration", "SECONDS", "sends requests for so long, instead of --num-prompts of them",
       nullptr, kInto.real(&BenchServeOptions::duration_s, 1e-3, 1e6)},
      input_row("N|A:B", "tokens of each prompt; A:B: drawn uniformly, both ends included",
                "100:1024"),
      output_row("N|A:B", "tokens of each answer; A:B: drawn uniformly, both ends included",
                 "100:1024"),
      {"--vocab-size", "N", "ids of prompts are less than N; take the model's where it is smaller",
       "10001", kInto.whole(&BenchServeOptions::vocabulary, 1, 10'000'000)},
      dataset_seed_row(),
      warmup_row("how many requests with short answers come first; they are not measured,\n"
                 "and the run ends if one of them fails",
                 "1"),
  };
}

OptionRows request_rows() {
  return {
      {"--ignore-eos", nullptr, "answers have the length that --output-len says", "on",
       kInto.on(&BenchServeOptions::ignore_eos), "--no-ignore-eos"},
      {"--temperature", "T", "0: always the most likely token", "0",
       kInto.real(&BenchServeOptions::temperature, 0, 1e6)},
      {"--top-p", "P", "only the most likely tokens, as many as make up P together", "the server's",
       kInto.real(&BenchServeOptions::top_p, 0, 1)},
      {"--top-k", "K", "only the K most likely tokens", "the server's",
       kInto.whole(&BenchServeOptions::top_k, -1, std::numeric_limits<std::int32_t>::max())},
      {"--extra-body", "JSON", "an object of more fields for every request: '{\"priority\": 1}'",
       nullptr, store_extra_body},
  };
}

OptionRows report_rows() {
  return {
      {"--goodput", "NAME:MS,NAME:MS...",
       "limits in milliseconds, such as ttft:200,tpot:20,e2el:5000; a request\n"
       "is good if it keeps all of them",
       nullptr, store_goodput},
      {"--save-requests", "FILE",
       "writes what was seen of every request, as JSON lines; a file with\n"
       "anything else is refused",
       nullptr, kInto.path(&BenchServeOptions::save_requests, "a file for the requests")},
      json_row(),
  };
}

}  // namespace

Command bench_serve_command() {
  return {"bench serve", "measures a server with the API of OpenAI: this one, vLLM or another",
          join_rows({server_rows(), load_rows(), request_rows(), report_rows()}), check_serve};
}

}  // namespace nvllm::launcher
