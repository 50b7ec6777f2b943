#include "launcher/bench/serve/serve_statistics.h"

#include <algorithm>
#include <utility>
#include <vector>

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

}  // namespace nvllm::launcher
