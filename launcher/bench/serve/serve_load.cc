#include "launcher/bench/serve/serve_load.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kMaxMessage = 4096;
constexpr std::int64_t kSendsBetweenPolls = 16;
constexpr Nanoseconds kPollLimit = std::chrono::milliseconds(100);

// A chunk that only starts or ends a message has no token. Any other chunk has one, even without
// text: part of a character, or a special token.
bool has_token(const StreamChunk& chunk) {
  return chunk.text || chunk.token_ids > 0 || !(chunk.role || chunk.finished);
}

}  // namespace

std::string message_of(std::string_view body) {
  try {
    const nlohmann::json json = parse_json(body);
    const nlohmann::json& error = json.contains("error") ? json.at("error") : json;
    if (error.is_string()) return error;
    if (error.contains("message")) return error.at("message");
    if (error.contains("detail")) return json_text(error.at("detail"));
  } catch (const nlohmann::json::exception&) {
    // Not JSON of that form.
  }
  return std::string(body.substr(0, 200));
}

void StreamExchange::on_head(const ResponseParser& response) {
  status_ = response.status();
}

void StreamExchange::on_body(std::string_view piece) {
  if (status_ == 200) {
    events_.feed(piece, [&](std::string_view data) { on_event(data); });
    if (record.chunks > 0) return;
  }
  // Until there is a chunk, the body may be an error message.
  other_body_.append(piece.substr(0, kMaxMessage - std::min(kMaxMessage, other_body_.size())));
}

void StreamExchange::on_event(std::string_view data) {
  if (data == "[DONE]") {
    finished_ = true;
    return;
  }
  const StreamChunk chunk = scan_chunk(data);
  if (!chunk.valid)
    return record_failure("bad chunk", str("no JSON object: '", data.substr(0, 200), "'"));
  if (chunk.error) return record_failure("error in the stream", message_of(data));
  if (chunk.choice) on_choice(chunk);
  if (chunk.prompt_tokens) record.prompt_tokens = *chunk.prompt_tokens;
  if (chunk.cached_tokens) record.cached_tokens = *chunk.cached_tokens;
  if (chunk.completion_tokens) {
    record.output_tokens = *chunk.completion_tokens;
    record.counted = true;
  }
  finished_ = finished_ || chunk.finished;
}

void StreamExchange::on_choice(const StreamChunk& chunk) {
  const std::int64_t now = client_.received_ns();
  const bool only_one = chunk.finished && record.chunks == 0;
  if (!has_token(chunk) && !only_one) {
    if (chunk.finished) record.last_ns = now;
    return;
  }
  if (record.chunks == 0) {
    record.first_ns = now;
  } else {
    record.gaps_s.push_back(static_cast<float>(static_cast<double>(now - record.last_ns) * 1e-9));
  }
  record.last_ns = now;
  ++record.chunks;
  if (!record.counted) record.output_tokens += std::max<std::int64_t>(chunk.token_ids, 1);
}

void StreamExchange::record_failure(const char* kind, std::string_view message) {
  if (!record.failure.empty()) return;  // the first failure is the reason
  record.failure = kind;
  record.message = message;
}

void StreamExchange::on_end(const std::string& kind, const std::string& error) {
  if (status_ != 0 && status_ != 200) {
    record_failure(str("HTTP ", status_).c_str(), message_of(other_body_));
  } else if (!error.empty()) {
    record_failure(kind.c_str(), error);
  } else if (record.chunks == 0) {
    record_failure("no stream",
                   str("the response has no chunk of a stream: '", message_of(other_body_), "'"));
  } else if (!finished_) {
    record_failure("torn stream", "the stream ended without a finish reason and without [DONE]");
  }
  if (!record.failure.empty()) record.last_ns = now_ns();
  record.ended = true;
  std::string().swap(other_body_);
}

// Decides when requests are due, and how many may be in flight.
class ServeLoad::Schedule {
 public:
  explicit Schedule(const ServePace& pace)
      : pace_(pace),
        arrivals_(pace.rate, pace.burstiness, pace.seed),
        begin_ns_(now_ns()),
        at_once_(std::isinf(pace.rate)) {}

  // Whether another request follows after `sent` requests.
  bool more(std::size_t sent) const {
    if (pace_.duration_s > 0) return seconds_since(begin_ns_) < pace_.duration_s;
    return static_cast<std::int64_t>(sent) < pace_.prompts;
  }

  // Time until the next request may be sent; the maximum if that depends on one ending.
  Nanoseconds wait(std::size_t in_flight) {
    const Nanoseconds until_due(at_once_ ? 0 : due_ns() - now_ns());
    if (until_due.count() > 0) {
      blocked_ = false;
      return until_due;
    }
    blocked_ = blocked_ || static_cast<std::int64_t>(in_flight) >= limit();
    return static_cast<std::int64_t>(in_flight) >= limit() ? Nanoseconds::max() : Nanoseconds(0);
  }

  // Sends a request; returns when it was due. A request that had to wait for others to end is due
  // when it is sent: that delay is not the client's.
  std::int64_t pop() {
    const std::int64_t due = at_once_ || blocked_ ? now_ns() : due_ns();
    due_s_ += arrivals_.next_gap_s();
    return due;
  }

 private:
  std::int64_t due_ns() const { return begin_ns_ + static_cast<std::int64_t>(due_s_ * 1e9); }
  std::int64_t limit() const {
    return pace_.max_concurrency.value_or(std::numeric_limits<std::int64_t>::max());
  }

  const ServePace& pace_;
  Arrivals arrivals_;
  std::int64_t begin_ns_;
  bool at_once_;
  double due_s_ = 0;      // the first request is sent immediately, as in vLLM
  bool blocked_ = false;  // since no request was last due, all slots were taken at some time
};

std::vector<ServeRecord> ServeLoad::run(WorkloadStream& workload, const ServePace& pace) {
  exchanges_.clear();
  Schedule schedule(pace);
  while (schedule.more(exchanges_.size()) || client_.in_flight() > 0) {
    client_.poll(send_due(workload, schedule));
  }
  std::vector<ServeRecord> records;
  for (StreamExchange& exchange : exchanges_) records.push_back(std::move(exchange.record));
  exchanges_.clear();
  return records;
}

// Sends requests that are due; returns how long the client may then wait.
Nanoseconds ServeLoad::send_due(WorkloadStream& workload, Schedule& schedule) {
  for (std::int64_t i = 0; schedule.more(exchanges_.size()); ++i) {
    const Nanoseconds wait = schedule.wait(client_.in_flight());
    if (wait.count() > 0) return std::min(wait, kPollLimit);
    if (i == kSendsBetweenPolls) return Nanoseconds(0);
    send(workload.next(), schedule.pop());
  }
  return kPollLimit;
}

void ServeLoad::send(const runtime::Request& request, std::int64_t due_ns) {
  const std::size_t turn = exchanges_.size() % servers_.size();
  const ServeServer& server = servers_[turn];
  std::string bytes =
      http_request("POST", server.address, endpoint_, headers_, writer_.body(request));
  StreamExchange& exchange = exchanges_.emplace_back(client_);
  ServeRecord& record = exchange.record;
  record.gaps_s.reserve(static_cast<std::size_t>(request.sampling.max_tokens.value_or(1)));
  record.server = turn;
  record.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  record.due_ns = due_ns;
  record.sent_ns = now_ns();
  client_.send(server.number, std::move(bytes), exchange);
}

}  // namespace nvllm::launcher
