#include "launcher/serve/api/responses/response_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_text.h"
#include "launcher/serve/api/chat_fields.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

namespace {

// --- The conversation: items become messages with their reasoning and tool calls ---

using jinja::Dict;
using jinja::List;
using jinja::Value;

bool is_text_type(std::string_view type) {
  return type == "input_text" || type == "output_text" || type == "text" ||
         type == "reasoning_text" || type == "summary_text";
}

// A string, or text parts only.
std::string text_of(const Value& content) {
  if (content.none()) return "";
  if (content.string() != nullptr) return *content.string();
  std::string text;
  for_each_dict(content, "a string or a list of parts", [&](const Dict& part) {
    const std::string type = need_string(part, "type");
    if (!is_text_type(type)) fail("a part of type \"", type, "\": only text is supported");
    check_names(part, {"type", "text", "annotations", "logprobs"});
    append_line(text, need_string(part, "text"));
  });
  return text;
}

std::string text_of(const Dict& item, std::string_view name) {
  const Value* const value = item.get(name);
  return value == nullptr ? "" : with_context(name, [&] { return text_of(*value); });
}

// The conversation so far, with an assistant message that may still grow: its reasoning, text and
// calls are separate items.
class Conversation {
 public:
  void add_system(std::string text) {
    flush();
    system_ = std::move(text);
  }

  void add(const Dict& item) {
    const Value* const type = item.get("type");
    if (type == nullptr || type->none()) return add_message(item);
    const std::string name = need_string(item, "type");
    if (name == "message") return add_message(item);
    if (name == "reasoning") return add_reasoning(item);
    if (name == "function_call") return add_call(item);
    if (name == "function_call_output") return add_result(item);
    if (name == "item_reference") fail("item_reference: the server keeps no items; pass it whole");
    fail("an item of type \"", name,
         "\": there are message, reasoning, function_call and function_call_output");
  }

  void add_user(std::string text) {
    flush();
    push(make_message("user", std::move(text)));
  }

  Value take() {
    flush();
    return std::move(messages_);
  }

 private:
  void add_message(const Dict& item) {
    check_names(item, {"type", "role", "content", "id", "status", "phase"});
    const std::string role = need_string(item, "role");
    if (item.get("content") == nullptr) fail("content: missing");
    std::string text = text_of(item, "content");
    if (role == "user") return add_user(std::move(text));
    if (role == "assistant") return append_line(text_, text);
    if (role != "system" && role != "developer") {
      fail("role \"", role, "\": must be user, assistant, system or developer");
    }
    flush_assistant();
    append_line(system_, text);
  }

  void add_reasoning(const Dict& item) {
    check_names(item, {"type", "id", "summary", "content", "encrypted_content", "status"});
    if (!text_.empty() || !calls_.items.empty()) flush();
    std::string text = text_of(item, "content");
    if (text.empty()) text = text_of(item, "summary");
    append_line(reasoning_, text);
  }

  void add_call(const Dict& item) {
    check_names(item, {"type", "id", "call_id", "name", "arguments", "status"});
    const std::string arguments = need_string(item, "arguments");
    calls_.items.emplace_back(make_tool_call(need_string(item, "call_id"),
                                             need_string(item, "name"),
                                             jinja::from_json(arguments, "arguments")));
  }

  void add_result(const Dict& item) {
    check_names(item, {"type", "id", "call_id", "output", "status"});
    if (item.get("output") == nullptr) fail("output: missing");
    flush();
    Dict message = make_message("tool", text_of(item, "output"));
    message.set("tool_call_id", need_string(item, "call_id"));
    push(std::move(message));
  }

  void push(Dict message) { messages_.items.emplace_back(std::move(message)); }

  void flush() {
    flush_assistant();
    if (!system_.empty()) push(make_message("system", std::exchange(system_, {})));
  }

  void flush_assistant() {
    if (text_.empty() && reasoning_.empty() && calls_.items.empty()) return;
    Dict message = make_message("assistant", std::exchange(text_, {}));
    if (!reasoning_.empty()) message.set("reasoning_content", std::exchange(reasoning_, {}));
    if (!calls_.items.empty()) message.set("tool_calls", std::exchange(calls_, {}));
    push(std::move(message));
  }

  List messages_;
  std::string system_;  // a single message, even if several items contribute
  std::string text_, reasoning_;
  List calls_;
};

// The body has "input", and optionally "instructions"; throws an ApiError that names one of them.
Value conversation_of_items(const Dict& body) {
  Conversation conversation;
  if (const Value* const instructions = body.get("instructions")) {
    conversation.add_system(with_field("instructions", [&] { return text_of(*instructions); }));
  }
  with_field("input", [&] {
    const Value& input = *body.get("input");
    if (input.string() != nullptr) return conversation.add_user(*input.string());
    for_each_dict(input, "a string or a list of items",
                  [&](const Dict& item) { conversation.add(item); });
  });
  return conversation.take();
}

// Converts {"type": "function", "name": ..., "parameters": ...} to {"type": "function", "function":
// {...}}.
Value tools_of_response(const Dict& body) {
  List tools;
  for_each_dict(*body.get("tools"), "a list of tools", [&](const Dict& tool) {
    check_names(tool, {"type", "name", "description", "parameters", "strict"});
    tools.items.emplace_back(
        make_tool(need_string(tool, "name"), tool.get("description"), tool.get("parameters")));
  });
  return tools;
}

// --- Fields ---

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
  fields.max_tokens_field = "max_output_tokens";
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
