// Formats the output lines of `generate`.
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "launcher/generate/answer_queue.h"

namespace nvllm::launcher {
namespace {

using runtime::TokenLogprob;
using runtime::TokenLogprobs;

// The shortest text that parses to the same number. JSON has no infinity (the logprob of a token
// that cannot be sampled); null replaces it.
template <typename Number>
void append_number(std::string& out, Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) {
      out += "null";
      return;
    }
  }
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  out.append(text.data(), end.ptr);
}

void append_key(std::string& out, std::string_view key) {
  if (out.back() != '{') out += ", ";
  out += '"';
  out += key;
  out += "\": ";
}

void append_string(std::string& out, std::string_view text) {
  out += json_text(nlohmann::json(text));
}

// A key with a number or a text.
template <typename Value>
void append_field(std::string& out, std::string_view key, const Value& value) {
  append_key(out, key);
  if constexpr (std::is_arithmetic_v<Value>) {
    append_number(out, value);
  } else {
    append_string(out, value);
  }
}

template <typename List, typename AppendItem>
void append_list(std::string& out, const List& list, AppendItem append_item) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out += ", ";
    first = false;
    append_item(out, item);
  }
  out += ']';
}

void append_ids(std::string& out, std::string_view key, const std::vector<std::int32_t>& ids) {
  append_key(out, key);
  append_list(out, ids, append_number<std::int32_t>);
}

// Without the closing brace.
void open_token(std::string& out, const TokenLogprob& token) {
  out += '{';
  append_field(out, "token_id", token.token);
  append_field(out, "logprob", token.logprob);
  append_field(out, "rank", token.rank);
}

void append_token(std::string& out, const TokenLogprobs& logprobs) {
  open_token(out, logprobs.chosen);
  append_key(out, "top");
  append_list(out, logprobs.top, [](std::string& to, const TokenLogprob& token) {
    open_token(to, token);
    to += '}';
  });
  out += '}';
}

// One entry per prompt token: the first has no logprob, since nothing precedes it.
void append_prompt_logprobs(std::string& out, const std::vector<TokenLogprobs>& logprobs) {
  out += "[null";
  for (const TokenLogprobs& each : logprobs) {
    out += ", ";
    append_token(out, each);
  }
  out += ']';
}

void append_seconds(std::string& out, const char* key, std::int64_t from_ns, std::int64_t to_ns) {
  append_key(out, key);
  append_number(out, std::round(static_cast<double>(to_ns - from_ns) * 1e-3) / 1e6);
}

void append_timings(std::string& out, const runtime::RequestTimes& times) {
  out += '{';
  append_seconds(out, "queue_s", times.arrived_ns, times.scheduled_ns);
  append_seconds(out, "ttft_s", times.arrived_ns, times.first_token_ns);
  append_seconds(out, "decode_s", times.first_token_ns, times.last_token_ns);
  append_seconds(out, "total_s", times.arrived_ns, times.last_token_ns);
  out += '}';
}

// The stop string or stop token requested; null if EOS or the length ended the answer.
void append_stop_reason(std::string& out, const RequestInfo& request, const Answer& answer) {
  if (!answer.stop_string.empty()) return append_string(out, answer.stop_string);
  if (answer.finish == runtime::FinishReason::stop && !answer.tokens.empty()) {
    for (const std::int32_t stop : request.stop_token_ids) {
      if (stop == answer.tokens.back()) return append_number(out, stop);
    }
  }
  out += "null";
}

void open_line(std::string& out, const RequestInfo& request) {
  out += '{';
  if (!request.id.empty()) {
    append_key(out, "id");
    out += request.id;
  }
  append_field(out, "line", request.line);
}

// For lines that --resume compares with the input.
void close_line(std::string& out, const RequestInfo& request) {
  if (!request.hash.empty()) append_field(out, "request_hash", request.hash);
  out += "}\n";
}

}  // namespace

void append_answer_line(std::string& out, const RequestInfo& request, std::int32_t index,
                        const Answer& answer, const std::vector<TokenLogprobs>& prompt_logprobs) {
  open_line(out, request);
  append_field(out, "index", index);
  append_ids(out, "prompt_token_ids", request.prompt);
  append_ids(out, "token_ids", answer.tokens);
  if (answer.text) append_field(out, "text", *answer.text);
  append_field(out, "finish_reason", name_of(answer.finish));
  append_key(out, "stop_reason");
  append_stop_reason(out, request, answer);
  if (request.logprobs) {
    append_key(out, "logprobs");
    append_list(out, answer.logprobs, append_token);
  }
  if (request.prompt_logprobs) {
    append_key(out, "prompt_logprobs");
    append_prompt_logprobs(out, prompt_logprobs);
  }
  append_field(out, "cached_tokens", answer.cached_tokens);
  append_field(out, "preemptions", answer.preemptions);
  append_field(out, "kv_mode", answer.kv_mode);
  append_key(out, "timings");
  append_timings(out, answer.times);
  close_line(out, request);
}

void append_piece_line(std::string& out, const RequestInfo& request, std::int32_t index,
                       std::string_view text, const std::vector<std::int32_t>& tokens) {
  open_line(out, request);
  append_field(out, "index", index);
  append_field(out, "delta", text);
  append_ids(out, "token_ids", tokens);
  out += "}\n";
}

void append_error_line(std::string& out, const RequestInfo& request, std::string_view error) {
  open_line(out, request);
  append_field(out, "error", error);
  close_line(out, request);
}

}  // namespace nvllm::launcher
