#include "launcher/serve/api_context.h"

#include <ctime>

#include "base/error.h"
#include "launcher/cli/option_value.h"
#include "launcher/serve/parsers/output_parser.h"

namespace nvllm::launcher {
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
                       const runtime::SamplingParams& model_defaults, std::int64_t max_model_len) {
  const ServeOptions& serve = options.serve;
  ApiContext context{.text = text,
                     .has_max_tokens = says_max_tokens(options.sampling),
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
  if (options.generate.generation_config) context.defaults = model_defaults;
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
