#include "launcher/bench/serve/serve_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "launcher/cli/program.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

bool within(double seconds, const std::optional<double>& limit_ms) {
  return !limit_ms || seconds * 1e3 <= *limit_ms;
}

bool is_good(const ServeRecord& record, const GoodputLimits& limits) {
  return within(record.ttft_s(), limits.ttft_ms) && within(record.tpot_s(), limits.tpot_ms) &&
         within(record.e2el_s(), limits.e2el_ms);
}

// Maximum number of concurrent requests. Failed ones count until they ended.
std::int64_t max_concurrent(std::span<const ServeRecord> records) {
  std::vector<std::pair<std::int64_t, int>> changes;
  for (const ServeRecord& record : records) {
    changes.emplace_back(record.sent_ns, 1);
    changes.emplace_back(std::max(record.last_ns, record.sent_ns), -1);
  }
  std::sort(changes.begin(), changes.end());  // at equal times, ends come first
  std::int64_t now = 0, max_at_once = 0;
  for (const auto& change : changes) max_at_once = std::max(max_at_once, now += change.second);
  return max_at_once;
}

double span_of(std::span<const ServeRecord> records) {
  if (records.empty()) return 0;
  std::int64_t begin = records.front().sent_ns, end = begin;
  for (const ServeRecord& record : records) {
    begin = std::min(begin, record.sent_ns);
    end = std::max(end, record.last_ns);
  }
  return static_cast<double>(end - begin) * 1e-9;
}

using Json = nlohmann::ordered_json;

std::string text_of(LengthRange range) {
  return range.min == range.max ? str(range.min) : str(range.min, " to ", range.max);
}

std::string load_line(const ServeReport& report) {
  const ServePace& pace = report.pace;
  std::string text = "  prompts of " + text_of(report.workload.prompt) + " tokens, answers of " +
                     text_of(report.workload.output) + "; ";
  text += std::isinf(pace.rate) ? std::string("all at once") : str(pace.rate, " requests/s");
  if (!std::isinf(pace.rate) && pace.burstiness != 1)
    text += str(" (burstiness ", pace.burstiness, ")");
  if (pace.max_concurrency) text += str(", at most ", *pace.max_concurrency, " in flight");
  if (pace.duration_s > 0) text += str(", for ", pace.duration_s, " s");
  text += str("; warm-up: ", counted(report.warmup, "request"));
  return text + '\n';
}

std::string text_of(const GoodputLimits& limits) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<double>& limit) {
    if (limit) text += str(text.empty() ? "" : ", ", name, " <= ", *limit, " ms");
  };
  add("TTFT", limits.ttft_ms);
  add("TPOT", limits.tpot_ms);
  add("E2EL", limits.e2el_ms);
  return text;
}

void add_latency(Json& json, const std::string& name, const Summary& seconds) {
  json["mean_" + name + "_ms"] = seconds.mean * 1e3;
  json["median_" + name + "_ms"] = seconds.p50 * 1e3;
  json["p90_" + name + "_ms"] = seconds.p90 * 1e3;
  json["p99_" + name + "_ms"] = seconds.p99 * 1e3;
  json["max_" + name + "_ms"] = seconds.max * 1e3;
}

// "inf", as vLLM writes it: JSON has no infinity.
Json rate_of(double rate) {
  return std::isinf(rate) ? Json("inf") : Json(rate);
}

Json failures_of(const ServeStatistics& statistics) {
  Json json = Json::object();
  for (const auto& [kind, failure] : statistics.failures) {
    json[kind] = {{"count", failure.count}, {"example", failure.example}};
  }
  return json;
}

Json milliseconds_of(const std::vector<float>& seconds) {
  Json json = Json::array();
  for (const float one : seconds) json.push_back(std::round(static_cast<double>(one) * 1e6) * 1e-3);
  return json;
}

TextTable figures_of(const ServeReport& report) {
  const ServeStatistics& s = report.statistics;
  TextTable table;
  table.add_row({"time", three_digits(s.seconds), "s"});
  table.add_row({"completed", str(s.completed), "requests"});
  table.add_row({"failed", str(s.failed()), "requests"});
  table.add_row({"throughput", three_digits(s.per_second(s.completed)), "requests/s"});
  if (report.options.goodput.any()) {
    table.add_row({"goodput", three_digits(s.per_second(s.good)),
                   "requests/s with " + text_of(report.options.goodput)});
  }
  table.add_row({"output", three_digits(s.per_second(s.output_tokens)), "tokens/s"});
  table.add_row({"prompt and output", three_digits(s.per_second(s.prompt_tokens + s.output_tokens)),
                 "tokens/s"});
  table.add_row({"prompt tokens", str(s.prompt_tokens), ""});
  table.add_row({"prompt tokens found in the cache", str(s.cached_tokens), ""});
  table.add_row({"output tokens", str(s.output_tokens), ""});
  table.add_row({"most requests in flight", str(s.max_concurrent), ""});
  return table;
}

}  // namespace

std::int64_t ServeStatistics::failed() const {
  std::int64_t count = 0;
  for (const auto& [kind, failure] : failures) count += failure.count;
  return count;
}

ServeStatistics statistics_of(std::span<const ServeRecord> records, const GoodputLimits& limits) {
  ServeStatistics result;
  result.seconds = span_of(records);
  result.max_concurrent = max_concurrent(records);
  std::vector<double> ttft, tpot, itl, e2el;
  for (const ServeRecord& record : records) {
    result.max_late_s =
        std::max(result.max_late_s, static_cast<double>(record.sent_ns - record.due_ns) * 1e-9);
    if (!record.succeeded()) {
      ServeFailure& failure = result.failures[record.failure];
      if (failure.count++ == 0) failure.example = record.message;
      continue;
    }
    ++result.completed;
    result.prompt_tokens += record.prompt_tokens;
    result.output_tokens += record.output_tokens;
    result.cached_tokens += record.cached_tokens;
    result.chunks += record.chunks;
    result.uncounted += record.counted ? 0 : 1;
    result.good += is_good(record, limits) ? 1 : 0;
    ttft.push_back(record.ttft_s());
    e2el.push_back(record.e2el_s());
    if (record.output_tokens > 1) tpot.push_back(record.tpot_s());
    itl.insert(itl.end(), record.gaps_s.begin(), record.gaps_s.end());
  }
  result.ttft_s = summary_of(std::move(ttft));
  result.tpot_s = summary_of(std::move(tpot));
  result.itl_s = summary_of(std::move(itl));
  result.e2el_s = summary_of(std::move(e2el));
  return result;
}

std::string format_table(const ServeReport& report) {
  const ServeStatistics& s = report.statistics;
  std::string urls;
  for (const std::string& url : report.base_urls) urls += (urls.empty() ? "" : ", ") + url;
  std::string text = str("nvllm ", kVersion, " bench serve: ", report.model, " at ", urls, ", ",
                         report.options.endpoint, '\n', load_line(report));
  text += figures_of(report).text();
  TextTable times;
  times.add_row({"ms", "mean", "p50", "p90", "p99", "max"});
  times.add_row(row_in_ms("TTFT", s.ttft_s));
  times.add_row(row_in_ms("TPOT", s.tpot_s));
  times.add_row(row_in_ms("ITL", s.itl_s));
  times.add_row(row_in_ms("E2EL", s.e2el_s));
  text += times.text();
  for (const auto& [kind, failure] : s.failures) {
    text += str("  failed, ", kind, ": ", counted(failure.count, "request"), "; ", failure.example,
                '\n');
  }
  if (s.uncounted > 0) {
    text += str("  ", counted(s.uncounted, "response"),
                " without usage: each chunk is counted as one token\n");
  }
  const double share = s.seconds > 0 ? report.client_cpu_s / s.seconds * 100 : 0;
  text += str("  client: ", three_digits(share), "% of one core");
  if (s.max_late_s > 0.001)
    text += str("; sent a request up to ", three_digits(s.max_late_s * 1e3), " ms late");
  return text + '\n';
}

std::string format_json(const ServeReport& report) {
  const ServeStatistics& s = report.statistics;
  Json json = {{"version", kVersion},
               {"benchmark", "serve"},
               {"model_id", report.model},
               {"base_urls", report.base_urls},
               {"endpoint", report.options.endpoint},
               {"num_prompts", s.completed + s.failed()},
               {"request_rate", rate_of(report.pace.rate)},
               {"burstiness", report.pace.burstiness},
               {"max_concurrency", nullptr},
               {"input_len", {report.workload.prompt.min, report.workload.prompt.max}},
               {"output_len", {report.workload.output.min, report.workload.output.max}},
               {"dataset_seed", report.workload.seed},
               {"temperature", report.options.temperature},
               {"warmup", report.warmup},
               {"duration", s.seconds},
               {"completed", s.completed},
               {"failed", s.failed()},
               {"failures", failures_of(s)},
               {"total_input_tokens", s.prompt_tokens},
               {"cached_input_tokens", s.cached_tokens},
               {"total_output_tokens", s.output_tokens},
               {"chunks", s.chunks},
               {"responses_without_usage", s.uncounted},
               {"request_throughput", s.per_second(s.completed)},
               {"request_goodput", nullptr},
               {"output_throughput", s.per_second(s.output_tokens)},
               {"total_token_throughput", s.per_second(s.prompt_tokens + s.output_tokens)},
               {"max_concurrent_requests", s.max_concurrent}};
  if (report.pace.max_concurrency) json["max_concurrency"] = *report.pace.max_concurrency;
  if (report.options.goodput.any()) json["request_goodput"] = s.per_second(s.good);
  add_latency(json, "ttft", s.ttft_s);
  add_latency(json, "tpot", s.tpot_s);
  add_latency(json, "itl", s.itl_s);
  add_latency(json, "e2el", s.e2el_s);
  json["client"] = {{"cpu_s", report.client_cpu_s}, {"max_late_ms", s.max_late_s * 1e3}};
  return json_text(json, 2) + '\n';
}

std::string format_requests(const ServeReport& report, std::span<const ServeRecord> records) {
  std::string text;
  const std::int64_t begin = records.empty() ? 0 : records.front().sent_ns;
  for (const ServeRecord& record : records) {
    Json json = {{"base_url", report.base_urls.at(record.server)},
                 {"sent_s", static_cast<double>(record.sent_ns - begin) * 1e-9},
                 {"prompt_tokens", record.prompt_tokens},
                 {"output_tokens", record.output_tokens}};
    if (record.succeeded()) {
      json["ttft_ms"] = record.ttft_s() * 1e3;
      json["tpot_ms"] = record.tpot_s() * 1e3;
      json["e2el_ms"] = record.e2el_s() * 1e3;
      json["itl_ms"] = milliseconds_of(record.gaps_s);
    } else {
      json["failure"] = record.failure;
      json["message"] = record.message;
    }
    text += json_text(json) + '\n';
  }
  return text;
}

}  // namespace nvllm::launcher
