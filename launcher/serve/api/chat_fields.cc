#include "launcher/serve/api/chat_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using Fields = ChatFields;

// The content of messages is checked when they are rendered.
void store_messages(const Json& value, Fields& fields) {
  if (!value.is_array()) fail(shown(value), ": not a list of messages");
  fields.has_messages = true;
}

void store_tools(const Json& value, Fields& fields) {
  if (!value.is_array()) fail(shown(value), ": not a list of tools");
  for (const Json& tool : value) {
    const bool is_function = tool.is_object() && tool.value("type", Json()) == "function";
    const Json function = is_function ? tool.value("function", Json()) : Json();
    if (!function.is_object() || !function.value("name", Json()).is_string()) {
      fail(shown(tool),
           ": no tool such as {\"type\": \"function\", \"function\": {\"name\": \"add\"}}");
    }
  }
  fields.has_tools = !value.empty();
}

void store_tool_choice(const Json& value, Fields& fields) {
  read_tool_choice(value, fields.tool_choice);
}

void store_reasoning_effort(const Json& value, Fields& fields) {
  read_reasoning_effort(value, fields.reasoning_effort);
}

void store_template_options(const Json& value, Fields& /*fields*/) {
  if (!value.is_object())
    fail(shown(value), ": not an object such as {\"enable_thinking\": false}");
  for (const char* const name : {"messages", "tools", "chat_template", "add_generation_prompt"}) {
    if (value.contains(name)) fail(name, ": is a field of its own");
  }
}

void store_documents(const Json& value, Fields& /*fields*/) {
  const auto is_object = [](const Json& document) { return document.is_object(); };
  if (!value.is_array() || !std::ranges::all_of(value, is_object)) {
    fail(shown(value), ": not a list of objects");
  }
}

void store_modalities(const Json& value, Fields& /*fields*/) {
  if (value != Json::array({"text"})) fail(shown(value), ": only [\"text\"] is supported");
}

constexpr Field<Fields> kFields[] = {
    {"messages", store_messages},
    {"tools", store_tools},
    {"tool_choice", store_tool_choice},
    {"parallel_tool_calls", store_value<&Fields::parallel_tool_calls, Fields>},
    {"max_completion_tokens", store_value<&Fields::max_completion_tokens, Fields>},
    {"logprobs", store_value<&Fields::wants_logprobs, Fields>},
    {"top_logprobs", store_value<&Fields::top_logprobs, Fields>},
    {"add_generation_prompt", store_value<&Fields::add_generation_prompt, Fields>},
    {"continue_final_message", store_value<&Fields::continue_final_message, Fields>},
    {"chat_template_kwargs", store_template_options},
    {"documents", store_documents},
    {"reasoning_effort", store_reasoning_effort},
    {"include_reasoning", store_value<&Fields::include_reasoning, Fields>},
    {"modalities", store_modalities},
};

constexpr RefusedField kRefused[] = {
    {"chat_template", "a request cannot bring a template; start the server with --chat-template"},
    {"functions", "is out of use; pass tools", "[]"},
    {"function_call", "is out of use; pass tool_choice", R"("none")"},
    {"prediction", "not supported; leave it out"},
    {"audio", "only text is supported; leave it out"},
    {"web_search_options", "not supported; leave it out"},
    {"verbosity", "not supported; leave it out"},
    {"echo", "is a field of /v1/completions; leave it out", "false"},
    {"prompt", "is a field of /v1/completions; pass messages"},
    {"suffix", "is a field of /v1/completions; leave it out", R"("")"},
};

void resolve_logprobs(Fields& fields) {
  if (fields.top_logprobs) {
    with_field("top_logprobs", [&] {
      check_logprobs_count(*fields.top_logprobs);
      if (!fields.wants_logprobs) fail("needs \"logprobs\": true");
    });
  }
  if (fields.wants_logprobs) fields.logprobs = fields.top_logprobs.value_or(0);
}

void check_tools(const ApiContext& context, const Fields& fields) {
  if (!fields.has_tools) {
    if (fields.tool_choice == "auto")
      throw ApiError(400, "tool_choice: needs tools", "tool_choice");
    return;
  }
  if (fields.tool_choice == "none") return;
  if (!context.auto_tool_choice || context.tool_call_parser.empty()) {
    throw ApiError(400,
                   "tool_choice \"auto\": the server was started without --enable-auto-tool-choice "
                   "and --tool-call-parser; pass \"tool_choice\": \"none\"",
                   "tool_choice");
  }
}

}  // namespace

void read_tool_choice(const Json& value, std::string& to) {
  if (value == "auto" || value == "none") return read_value(value, to);
  if (value == "required" || value.is_object()) {
    fail(shown(value), ": a call cannot be forced; only \"auto\" and \"none\" are supported");
  }
  fail(shown(value), R"(: must be "auto" or "none")");
}

void read_reasoning_effort(const Json& value, std::string& to) {
  constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  read_value(value, to);
  if (std::ranges::find(kEfforts, to) == kEfforts.end()) {
    fail(shown(value), ": must be none, minimal, low, medium, high, xhigh or max");
  }
}

ChatFields read_chat_fields(const ApiContext& context, const Json& body) {
  auto fields = read_fields<Fields>(context, body, kFields, kRefused);
  if (!fields.has_messages) throw ApiError(400, "messages: missing", "messages");
  if (fields.continue_final_message && fields.add_generation_prompt) {
    throw ApiError(
        400,
        "continue_final_message: the message goes on, so nothing may begin after it; pass "
        "\"add_generation_prompt\": false",
        "continue_final_message");
  }
  if (fields.max_completion_tokens) {
    fields.max_tokens = fields.max_completion_tokens;
    fields.max_tokens_field = "max_completion_tokens";
  }
  resolve_logprobs(fields);
  check_tools(context, fields);
  return fields;
}

ChatPrompt chat_prompt_of(const ApiContext& context, const Fields& fields, std::string_view body) {
  const jinja::Value parsed = jinja::from_json(body, "the body");  // keeps the order of keys
  const jinja::Dict& object = *parsed.dict();
  ChatPromptOptions options{.messages = *object.get("messages"),
                            .template_options = context.chat_template_kwargs,
                            .add_generation_prompt = fields.add_generation_prompt,
                            .continue_final_message = fields.continue_final_message,
                            .add_special_tokens = fields.add_special_tokens.value_or(false)};
  if (fields.has_tools) options.tools = *object.get("tools");
  if (!fields.reasoning_effort.empty()) {
    options.template_options.set("reasoning_effort", fields.reasoning_effort);
  }
  if (const jinja::Value* documents = object.get("documents")) {
    options.template_options.set("documents", *documents);
  }
  const jinja::Value* const more = object.get("chat_template_kwargs");
  if (more != nullptr && more->dict() != nullptr) {
    for (const auto& [name, value] : more->dict()->items()) {
      options.template_options.set(name, value);
    }
  }
  ChatPrompt prompt = make_chat_prompt(context, options);
  truncate_prompt(context, fields, prompt.ids);
  return prompt;
}

std::vector<std::string> chat_field_names() {
  return accepted_names<Fields>(kFields, kRefused);
}

}  // namespace nvllm::launcher
