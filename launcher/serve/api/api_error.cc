// Error responses of the API.
#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/json_append.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kMaxMessageBytes = 300;

// The names that vLLM and OpenAI's clients know.
std::string_view type_of(int status) {
  switch (status) {
    case 401: return "AuthenticationError";
    case 403: return "PermissionDeniedError";
    case 404: return "NotFoundError";
    case 405: return "MethodNotAllowedError";
    case 408: return "TimeoutError";
    case 413: return "RequestEntityTooLargeError";
    case 429: return "RateLimitError";
    case 503: return "ServiceUnavailableError";
    case 504: return "TimeoutError";
    default: return status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

// Messages may contain values that a client sent, so these are truncated, at a character boundary.
std::string bounded(std::string_view message) {
  std::string text;
  tokenizer::append_valid_utf8(text, message.substr(0, kMaxMessageBytes + 4));
  if (text.size() <= kMaxMessageBytes) return text;
  constexpr std::string_view kEllipsis = "...";
  std::size_t end = kMaxMessageBytes - kEllipsis.size();
  while (end > 0 && tokenizer::is_utf8_continuation(text[end])) --end;
  return text.substr(0, end).append(kEllipsis);
}

}  // namespace

std::string error_body(int status, std::string_view message, std::string_view param) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, bounded(message));
  out += R"(,"type":)";
  append_json_string(out, type_of(status));
  out += R"(,"param":)";
  if (param.empty()) {
    out += "null";
  } else {
    append_json_string(out, bounded(param));
  }
  out += R"(,"code":)";
  append_json_number(out, std::int64_t{status});
  out += "}}";
  return out;
}

}  // namespace nvllm::launcher
