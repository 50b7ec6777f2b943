#include "launcher/bench/load_generator.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kPatience = std::chrono::milliseconds(100);  // of one look for news

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
  const std::vector<runtime::Update> updates = client_.poll(kPatience);
  if (updates.empty()) return;
  const Trace::Span span(trace_, "host", "note updates");
  const std::int64_t now = now_ns();
  for (const runtime::Update& update : updates) note(update, now);
}

void LoadGenerator::note(const runtime::Update& update, std::int64_t now) {
  if (!update.error.empty()) fail("a request of the benchmark was refused: ", update.error);
  const std::uint64_t after = next_id_ - update.request;  // 1: the newest
  if (after > records_.size()) return;                    // of what ran before begin()
  RequestRecord& record = records_[records_.size() - after];
  const auto count = static_cast<std::int64_t>(update.tokens.size());
  if (count > 0) {
    if (record.tokens == 0) {
      record.first_ns = now;
    } else {
      const double gap = static_cast<double>(now - record.last_ns) * 1e-9;
      record.gaps_s.insert(record.gaps_s.end(), update.tokens.size(),
                           static_cast<float>(gap / static_cast<double>(count)));
    }
    record.tokens += count;
    record.last_ns = now;
  }
  if (update.finish == runtime::FinishReason::none) return;
  record.finished = true;
  record.cached_tokens = update.cached_tokens;
  record.preemptions = update.preemptions;
}

void LoadGenerator::stop() {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!records_[i].finished) client_.abort(next_id_ - records_.size() + i);
  }
  while (client_.unfinished() > 0) poll();
}

void LoadGenerator::run(std::span<const runtime::Request> requests, std::int64_t at_once) {
  std::size_t next = 0;
  while (next < requests.size() || client_.unfinished() > 0) {
    while (next < requests.size() && unfinished() < at_once) submit(requests[next++]);
    poll();
  }
}

}  // namespace nvllm::launcher
