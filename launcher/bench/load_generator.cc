#include "launcher/bench/load_generator.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>

#include "base/clock.h"
#include "base/error.h"

namespace nvllm::launcher {

namespace {

constexpr Nanoseconds kPollLimit = std::chrono::milliseconds(100);

void record_tokens(RequestRecord& record, std::int64_t tokens, std::int64_t now) {
  if (tokens == 0) return;
  if (record.tokens == 0) {
    record.first_ns = now;
  } else {
    const double gap = static_cast<double>(now - record.last_ns) * 1e-9;
    record.gaps_s.insert(record.gaps_s.end(), static_cast<std::size_t>(tokens),
                         static_cast<float>(gap / static_cast<double>(tokens)));
  }
  record.tokens += tokens;
  record.last_ns = now;
}

}  // namespace

void LoadGenerator::submit(const runtime::Request& request) {
  const Trace::Span span(trace_, "host", "submit");
  RequestRecord record;
  record.submitted_ns = now_ns();
  record.gaps_s.reserve(static_cast<std::size_t>(request.sampling.max_tokens.value_or(0)));
  records_.push_back(std::move(record));
  client_.submit(next_id_++, request);
}

void LoadGenerator::poll() {
  const std::vector<runtime::Update> updates = client_.poll(kPollLimit);
  if (on_poll_) on_poll_(total_);
  if (updates.empty()) return;
  const Trace::Span span(trace_, "host", "note updates");
  const std::int64_t now = now_ns();
  // The updates may be from several steps.
  std::map<RequestRecord*, std::int64_t> tokens;
  for (const runtime::Update& update : updates) {
    if (!update.error.empty()) fail("a request of the benchmark was refused: ", update.error);
    RequestRecord* record = record_of(update);
    if (record == nullptr) continue;
    tokens[record] += static_cast<std::int64_t>(update.tokens.size());
    for (const runtime::TokenLogprobs& token : update.logprobs)
      record->logprobs.push_back(token.chosen);
    if (update.finish == runtime::FinishReason::none) continue;
    record->finished = true;
    record->cached_tokens = update.cached_tokens;
    record->preemptions = update.preemptions;
  }
  for (const auto& [record, count] : tokens) record_tokens(*record, count, now);
}

// nullptr for a request submitted before clear().
RequestRecord* LoadGenerator::record_of(const runtime::Update& update) {
  const std::uint64_t after = next_id_ - update.request;  // 1: the newest
  return after <= records_.size() ? &records_[records_.size() - after] : nullptr;
}

void LoadGenerator::abort_all() {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!records_[i].finished) client_.abort(next_id_ - records_.size() + i);
  }
  while (client_.unfinished() > 0) poll();
}

void LoadGenerator::run(std::span<const runtime::Request> requests, std::int64_t at_once) {
  std::size_t next = 0;
  total_ = requests.size();
  while (next < requests.size() || client_.unfinished() > 0) {
    while (next < requests.size() && unfinished() < at_once) submit(requests[next++]);
    poll();
  }
  total_ = 0;
}

}  // namespace nvllm::launcher
