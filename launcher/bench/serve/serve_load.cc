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

// A chunk that only begins or ends a message has no token. Any other has one, even without text:
// half a character, or a special token.
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
    // It is no JSON of that form.
  }
  return std::string(body.substr(0, 200));
}

void StreamExchange::on_head(const ResponseParser& response) {
  status_ = response.status();
}

void StreamExchange::on_body(std::string_view piece) {
  if (status_ == 200) {
    events_.feed(piece, [&](std::string_view data) { take(data); });
    if (record.chunks > 0) return;
  }
  // Until there is a chunk, the body may be a message about what is wrong.
  other_body_.append(piece.substr(0, kMaxMessage - std::min(kMaxMessage, other_body_.size())));
}

void StreamExchange::take(std::string_view data) {
  if (data == "[DONE]") {
    finished_ = true;
    return;
  }
  const StreamChunk chunk = scan_chunk(data);
  if (!chunk.valid) return refuse("bad chunk", str("no JSON object: '", data.substr(0, 200), "'"));
  if (chunk.error) return refuse("error in the stream", message_of(data));
  if (chunk.choice) take_choice(chunk);
  if (chunk.prompt_tokens) record.prompt_tokens = *chunk.prompt_tokens;
  if (chunk.cached_tokens) record.cached_tokens = *chunk.cached_tokens;
  if (chunk.completion_tokens) {
    record.output_tokens = *chunk.completion_tokens;
    record.counted = true;
  }
  finished_ = finished_ || chunk.finished;
}

void StreamExchange::take_choice(const StreamChunk& chunk) {
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

void StreamExchange::refuse(const char* kind, std::string_view message) {
  if (!record.failure.empty()) return;  // the first one is the reason
  record.failure = kind;
  record.message = message;
}

void StreamExchange::on_end(const std::string& kind, const std::string& error) {
  if (status_ != 0 && status_ != 200) {
    refuse(str("HTTP ", status_).c_str(), message_of(other_body_));
  } else if (!error.empty()) {
    refuse(kind.c_str(), error);
  } else if (record.chunks == 0) {
    refuse("no stream",
           str("the response has no chunk of a stream: '", message_of(other_body_), "'"));
  } else if (!finished_) {
    refuse("torn stream", "the stream ended without a finish reason and without [DONE]");
  }
  if (!record.failure.empty()) record.last_ns = now_ns();
  record.ended = true;
  std::string().swap(other_body_);
}

void ServeLoad::send(const runtime::Request& request, std::int64_t due_ns) {
  const std::size_t turn = exchanges_.size() % servers_.size();
  const ServeServer& server = servers_[turn];
  StreamExchange& exchange = exchanges_.emplace_back(client_);
  const auto output_tokens = static_cast<std::size_t>(request.sampling.max_tokens.value_or(1));
  exchange.record.gaps_s.reserve(output_tokens);
  exchange.record.server = turn;
  exchange.record.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  std::string bytes =
      http_request("POST", server.address, endpoint_, headers_, writer_.body(request));
  exchange.record.sent_ns = now_ns();
  exchange.record.due_ns = due_ns > 0 ? due_ns : exchange.record.sent_ns;
  client_.send(server.number, std::move(bytes), exchange);
}

std::vector<ServeRecord> ServeLoad::run(WorkloadStream& workload, const ServePace& pace) {
  exchanges_.clear();
  Arrivals arrivals(pace.rate, pace.burstiness, pace.seed);
  const bool at_once = std::isinf(pace.rate);
  const std::int64_t begin = now_ns();
  const auto at_most = static_cast<std::size_t>(
      pace.max_concurrency.value_or(std::numeric_limits<std::int64_t>::max()));
  const auto more = [&](std::int64_t now) {
    if (pace.duration_s > 0) return static_cast<double>(now - begin) * 1e-9 < pace.duration_s;
    return static_cast<std::int64_t>(exchanges_.size()) < pace.prompts;
  };
  double due_s = 0;  // the first request is sent at once, as vLLM does
  const auto due_ns = [&] { return begin + static_cast<std::int64_t>(due_s * 1e9); };
  bool was_full = false;  // a request that waited for others is not late
  while (true) {
    for (std::int64_t i = 0; i < kSendsBetweenPolls; ++i) {
      const std::int64_t now = now_ns();
      if (!more(now) || (!at_once && due_ns() > now)) break;
      if (client_.in_flight() >= at_most) {
        was_full = true;
        break;
      }
      send(workload.next(), at_once || was_full ? 0 : due_ns());
      due_s += arrivals.next_gap_s();
    }
    const std::int64_t now = now_ns();
    const bool full = client_.in_flight() >= at_most;
    if (!full && due_ns() > now) was_full = false;
    if (!more(now) && client_.in_flight() == 0) break;
    Nanoseconds limit = kPollLimit;
    if (more(now) && !full) {
      limit = std::clamp(Nanoseconds(at_once ? 0 : due_ns() - now), Nanoseconds(0), kPollLimit);
    }
    client_.poll(limit);
  }
  std::vector<ServeRecord> records;
  for (StreamExchange& exchange : exchanges_) records.push_back(std::move(exchange.record));
  exchanges_.clear();
  return records;
}

}  // namespace nvllm::launcher
