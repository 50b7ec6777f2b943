#include "launcher/serve/api/api_call.h"

#include <ctime>

#include "base/error.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/serve/api/response_json.h"
#include "launcher/serve/parsers/output_parser.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {

// --- Error responses ---

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

// --- The context, from the command line ---

namespace {

// Whether the command line sets --max-tokens.
bool says_max_tokens(const SamplingSettings& settings) {
  constexpr std::int32_t kUntouched = -1;
  runtime::SamplingParams params;
  params.max_tokens = kUntouched;
  apply_sampling(settings, params);
  return params.max_tokens != kUntouched;
}

jinja::Dict template_kwargs(const std::string& json) {
  if (json.empty()) return {};
  const jinja::Value kwargs = jinja::from_json(json, "--default-chat-template-kwargs");
  if (kwargs.dict() == nullptr) {
    fail("--default-chat-template-kwargs: not a JSON object such as {\"enable_thinking\": false}");
  }
  return *kwargs.dict();
}

}  // namespace

ApiContext api_context(const Options& options, const TextModel* text,
                       const ModelDefaults& model_defaults, std::int64_t max_model_len) {
  const ServeOptions& serve = options.serve;
  const ModelDefaults defaults =
      options.generate.generation_config ? model_defaults : ModelDefaults{};
  ApiContext context{.text = text,
                     .defaults = defaults.sampling,
                     .has_max_tokens = defaults.has_max_tokens || says_max_tokens(options.sampling),
                     .stop = options.generate.stop,
                     .max_model_len = max_model_len,
                     .model_names = serve.served_model_names.empty()
                                        ? std::vector<std::string>{options.model_name}
                                        : serve.served_model_names,
                     .model_root = options.model.path,
                     .created_s = std::time(nullptr),
                     .reasoning_parser = serve.reasoning_parser,
                     .tool_call_parser = serve.tool_call_parser,
                     .auto_tool_choice = serve.auto_tool_choice,
                     .chat_template_kwargs = template_kwargs(serve.chat_template_kwargs)};
  apply_sampling(options.sampling, context.defaults);
  return context;
}

void check_parsers(const ServeOptions& serve) {
  try {
    make_output_parser(
        {.reasoning_parser = serve.reasoning_parser, .tool_call_parser = serve.tool_call_parser});
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace nvllm::launcher
