#include "launcher/serve/api/responses/response_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "launcher/serve/api/chat_fields.h"
#include "launcher/serve/api/generation_fields.h"
#include "launcher/serve/api/request_body.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using Fields = ResponseFields;

void store_input(const Json& value, Fields& fields) {
  if (!value.is_string() && !value.is_array()) {
    fail(shown(value), ": neither a string nor a list of items");
  }
  if (value.empty()) fail("an empty list; pass at least one item");
  fields.has_input = true;
}

void store_instructions(const Json& value, Fields& fields) {
  if (!value.is_string()) fail(shown(value), ": not a string");
  fields.instructions = json_text(value);
}

void store_tools(const Json& value, Fields& fields) {
  if (!value.is_array()) fail(shown(value), ": not a list of tools");
  for (const Json& tool : value) {
    const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
    if (type != "function") {
      fail("type ", shown(type),
           ": the server has no tools of its own; only \"function\" is known");
    }
  }
  fields.has_tools = !value.empty();
  fields.tools = json_text(value);
}

void store_tool_choice(const Json& value, Fields& fields) {
  read_tool_choice(value, fields.tool_choice);
}

void store_reasoning(const Json& value, Fields& fields) {
  if (!value.is_object()) fail(shown(value), R"(: not an object such as {"effort": "low"})");
  for (const auto& [name, item] : value.items()) {
    if (item.is_null()) continue;
    if (name == "effort") {
      with_context(name, [&, &v = item] { read_reasoning_effort(v, fields.reasoning_effort); });
    } else if (name != "summary" || item != "auto") {
      fail(name, " ", shown(item), ": not supported; the reasoning is there whole");
    }
  }
}

void store_text(const Json& value, Fields& /*fields*/) {
  if (!value.is_object()) fail(shown(value), R"(: not such as {"format": {"type": "text"}})");
  for (const auto& [name, item] : value.items()) {
    const bool is_plain_format =
        name == "format" && item.is_object() && item.value("type", Json()) == "text";
    const bool is_plain =
        item.is_null() || is_plain_format || (name == "verbosity" && item == "medium");
    if (!is_plain) fail(name, " ", shown(item), ": not supported; only plain text is");
  }
}

void store_include(const Json& value, Fields& /*fields*/) {
  if (!value.is_array()) fail(shown(value), ": not a list");
  for (const Json& item : value) {
    // What others encrypt is in plain text here: a reasoning item's content.
    if (item != "reasoning.encrypted_content") fail(shown(item), ": not supported; leave it out");
  }
}

// Rejects all values but one.
template <typename Value>
void store_only(const Json& value, Value only, const char* why) {
  if (value != only) fail(shown(value), ": ", why);
}
void store_truncation(const Json& value, Fields& /*fields*/) {
  store_only(value, "disabled", "only \"disabled\" is supported; pass truncate_prompt_tokens");
}
void store_background(const Json& value, Fields& /*fields*/) {
  store_only(value, false, "the server keeps no responses; leave it out");
}
void store_top_logprobs(const Json& value, Fields& /*fields*/) {
  store_only(value, 0, "log probabilities are in /v1/chat/completions; leave it out");
}

void store_flag(const Json& value, Fields& /*fields*/) {
  bool flag = false;
  read_value(value, flag);
}

void store_stream_options(const Json& value, Fields& /*fields*/) {
  if (!value.is_object()) fail(shown(value), ": not an object");
  for (const auto& [name, item] : value.items()) {
    if (item.is_null() || (name == "include_obfuscation" && item == false)) continue;
    fail(name, " ", shown(item), ": not supported; leave it out");
  }
}

void store_metadata(const Json& value, Fields& fields) {
  if (!value.is_object()) fail(shown(value), ": not an object");
  fields.metadata = json_text(value);
}

void store_user(const Json& value, Fields& fields) {
  if (!value.is_string()) fail(shown(value), ": not a string");
  fields.user = json_text(value);
}

constexpr Field<Fields> kFields[] = {
    {"input", store_input},
    {"instructions", store_instructions},
    {"max_output_tokens", store_value<&Fields::max_tokens, Fields>},
    {"tools", store_tools},
    {"tool_choice", store_tool_choice},
    {"parallel_tool_calls", store_value<&Fields::parallel_tool_calls, Fields>},
    {"reasoning", store_reasoning},
    {"text", store_text},
    {"include", store_include},
    {"truncation", store_truncation},
    {"background", store_background},
    {"top_logprobs", store_top_logprobs},
    {"store", store_flag},  // nothing is stored, and the response says so
    {"stream_options", store_stream_options},
    {"metadata", store_metadata},
    {"user", store_user},
};

constexpr const char* kKeepsNothing = "the server keeps no responses; pass the whole conversation";
constexpr const char* kNotOfResponses = "not in /v1/responses; use /v1/chat/completions";

constexpr RefusedField kRefused[] = {
    {"previous_response_id", kKeepsNothing},
    {"conversation", kKeepsNothing},
    {"prompt", "the server keeps no prompts; pass input and instructions"},
    {"max_tool_calls", "the server has no tools of its own; leave it out"},
    {"context_management", "not supported; leave it out"},
    {"max_tokens", "is a field of /v1/chat/completions; pass max_output_tokens"},
    {"max_completion_tokens", "is a field of /v1/chat/completions; pass max_output_tokens"},
    {"messages", "is a field of /v1/chat/completions; pass input"},
    {"response_format", "is a field of /v1/chat/completions; pass text"},
    {"n", kNotOfResponses},
    {"logprobs", kNotOfResponses},
    {"prompt_logprobs", kNotOfResponses},
    {"return_token_ids", kNotOfResponses},
    {"return_tokens_as_token_ids", kNotOfResponses},
};

}  // namespace

ResponseFields read_response_fields(const ApiContext& context, std::string_view body) {
  auto fields = read_fields<Fields>(context, parse_body(body), kFields, kRefused);
  if (!fields.has_input) throw ApiError(400, "input: missing", "input");
  if (fields.has_tools && fields.tool_choice != "none")
    check_finds_tool_calls(context, R"("none")");
  return fields;
}

ChatPrompt response_prompt_of(const ApiContext& context, const ResponseFields& fields,
                              std::string_view body) {
  const jinja::Value parsed = jinja::from_json(body, "the body");  // its names keep their order
  const jinja::Dict& object = *parsed.dict();
  ChatPromptOptions options{.template_options = context.chat_template_kwargs,
                            .add_special_tokens = fields.add_special_tokens.value_or(false)};
  options.messages = conversation_of_items(object);
  if (fields.has_tools) {
    options.tools = with_field("tools", [&] { return tools_of_response(object); });
  }
  if (!fields.reasoning_effort.empty()) {
    options.template_options.set("reasoning_effort", fields.reasoning_effort);
  }
  ChatPrompt prompt = make_chat_prompt(context, options);
  truncate_prompt(context, fields, prompt.ids);
  return prompt;
}

std::vector<std::string> response_field_names() {
  return accepted_names<Fields>(kFields, kRefused);
}

}  // namespace nvllm::launcher
