#include "launcher/serve/api/messages/message_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "launcher/serve/api/generation_fields.h"
#include "launcher/serve/api/request_body.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using Fields = MessageFields;

void store_messages(const Json& value, Fields& fields) {
  if (!value.is_array()) fail(shown(value), ": not a list of messages");
  if (value.empty()) fail("an empty list; pass at least one message");
  fields.has_messages = true;
}

void store_tools(const Json& value, Fields& fields) {
  if (!value.is_array()) fail(shown(value), ": not a list of tools");
  for (const Json& tool : value) {
    if (!tool.is_object() || !tool.value("name", Json()).is_string()) {
      fail(shown(tool), R"(: no tool such as {"name": "add", "input_schema": {"type": "object"}})");
    }
    const Json type = tool.value("type", Json());
    if (!type.is_null() && type != "custom") {
      fail("type ", shown(type), ": the server has no tools of its own; only \"custom\" is known");
    }
    if (!tool.value("input_schema", Json()).is_object()) {
      fail(shown(tool["name"]), ": has no input_schema");
    }
  }
  fields.has_tools = !value.empty();
}

void store_tool_choice(const Json& value, Fields& fields) {
  const Json type = value.is_object() ? value.value("type", Json()) : Json();
  if (type == "any" || type == "tool") {
    fail(shown(type), ": a call cannot be forced; only \"auto\" and \"none\" are supported");
  }
  if (type != "auto" && type != "none") fail(shown(value), R"(: not such as {"type": "auto"})");
  for (const auto& [name, item] : value.items()) {
    if (name == "type") continue;
    if (name != "disable_parallel_tool_use") fail(shown(Json(name)), ": no such option");
    bool disabled = false;
    with_context(name, [&, &v = item] { read_value(v, disabled); });
    fields.parallel_tool_calls = !disabled;
  }
  fields.uses_tools = type == "auto";
}

// A thinking budget cannot be enforced separately; max_tokens limits all tokens.
void store_thinking(const Json& value, Fields& fields) {
  const Json type = value.is_object() ? value.value("type", Json()) : Json();
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    fail(shown(value), R"(: not such as {"type": "enabled"}, "disabled" or "adaptive")");
  }
  for (const auto& [name, item] : value.items()) {
    if (name == "type") continue;
    if (name != "budget_tokens") fail(shown(Json(name)), ": no such option");
    std::int32_t budget = 0;
    with_context(name, [&, &v = item] { read_value(v, budget); });
    if (budget < 1) fail("budget_tokens: ", budget, ": must be at least 1");
  }
  if (type != "adaptive") fields.thinking = type == "enabled";
}

constexpr Field<Fields> kFields[] = {
    {"messages", store_messages},
    {"system", store_nothing<Fields>},  // with the messages
    {"stop_sequences", store_value<&Fields::stop, Fields>},
    {"tools", store_tools},
    {"tool_choice", store_tool_choice},
    {"thinking", store_thinking},
};

constexpr const char* kNotOfMessages = "not in /v1/messages; use /v1/chat/completions";

constexpr RefusedField kRefused[] = {
    {"container", "the server has no tools of its own; leave it out"},
    {"mcp_servers", "the server has no tools of its own; leave it out"},
    {"context_management", "not supported; leave it out"},
    {"output_config", "not supported; leave it out"},
    {"output_format", "structured output is not supported; leave it out"},
    {"inference_geo", "not supported; leave it out"},
    {"stop", "is a field of /v1/chat/completions; pass stop_sequences"},
    {"max_completion_tokens", "is a field of /v1/chat/completions; pass max_tokens"},
    {"n", kNotOfMessages},
    {"logprobs", kNotOfMessages},
    {"prompt_logprobs", kNotOfMessages},
    {"return_token_ids", kNotOfMessages},
    {"return_tokens_as_token_ids", kNotOfMessages},
    {"stream_options", kNotOfMessages},
    {"response_format", kNotOfMessages},
};

}  // namespace

MessageFields read_message_fields(const ApiContext& context, std::string_view body) {
  auto fields = read_fields<Fields>(context, parse_body(body), kFields, kRefused);
  if (!fields.has_messages) throw ApiError(400, "messages: missing", "messages");
  if (fields.has_tools && fields.uses_tools) check_finds_tool_calls(context, R"({"type": "none"})");
  return fields;
}

ChatPrompt message_prompt_of(const ApiContext& context, const MessageFields& fields,
                             std::string_view body) {
  const jinja::Value parsed = jinja::from_json(body, "the body");  // its names keep their order
  const jinja::Dict& object = *parsed.dict();
  ChatPromptOptions options{.template_options = context.chat_template_kwargs,
                            .add_special_tokens = fields.add_special_tokens.value_or(false)};
  options.messages = conversation_of_messages(object);
  if (fields.has_tools)
    options.tools = with_field("tools", [&] { return tools_of_message(object); });
  if (fields.thinking) options.template_options.set("enable_thinking", *fields.thinking);
  // The model continues a last message of the assistant.
  if (ends_with_assistant(object)) {
    options.continue_final_message = true;
    options.add_generation_prompt = false;
  }
  ChatPrompt prompt = make_chat_prompt(context, options);
  truncate_prompt(context, fields, prompt.ids);
  return prompt;
}

std::vector<std::string> message_field_names() {
  return accepted_names<Fields>(kFields, kRefused);
}

}  // namespace nvllm::launcher
