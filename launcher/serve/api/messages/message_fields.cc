#include "launcher/serve/api/messages/message_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

namespace {

// --- The conversation: content blocks become texts, tool calls and tool messages ---

using jinja::Dict;
using jinja::List;
using jinja::Value;

// Every block may mark the end of Anthropic's cache; the prefix cache here does not need it.
constexpr std::string_view kHint = "cache_control";

std::string text_of_block(const Dict& block) {
  check_names(block, {"type", "text", "citations", kHint});
  if (const Value* const citations = block.get("citations"); citations && citations->truth()) {
    fail("citations: not supported; leave it out");
  }
  return need_string(block, "text");
}

// A string, or blocks of type text only.
std::string text_of(const Value& content) {
  if (content.none()) return "";
  if (content.string() != nullptr) return *content.string();
  std::string text;
  for_each_dict(content, "a string or a list of blocks", [&](const Dict& block) {
    const std::string type = need_string(block, "type");
    if (type != "text") fail("a block of type \"", type, "\": only text is supported here");
    append_line(text, text_of_block(block));
  });
  return text;
}

// The messages from one user message, in the order of its blocks: texts, and tool results.
class UserMessage {
 public:
  explicit UserMessage(List& to) : to_(to) {}

  void add(const Dict& block) {
    const std::string type = need_string(block, "type");
    if (type == "text") {
      append_line(text_, text_of_block(block));
    } else if (type == "tool_result") {
      flush();
      add_result(block);
    } else {
      fail("a block of type \"", type, "\": only text and tool_result are supported");
    }
  }

  void flush() {
    if (text_.empty()) return;
    to_.items.emplace_back(make_message("user", std::exchange(text_, {})));
  }

 private:
  void add_result(const Dict& block) {
    check_names(block, {"type", "tool_use_id", "content", "is_error", kHint});
    const Value* const content = block.get("content");
    std::string text = content == nullptr ? "" : text_of(*content);
    // Templates do not support failed tools, so the text reports it.
    const Value* const is_error = block.get("is_error");
    if (is_error != nullptr && is_error->truth()) text.insert(0, "Error: ");
    Dict message = make_message("tool", std::move(text));
    message.set("tool_call_id", need_string(block, "tool_use_id"));
    to_.items.emplace_back(std::move(message));
  }

  List& to_;
  std::string text_;
};

class AssistantMessage {
 public:
  void add(const Dict& block) {
    const std::string type = need_string(block, "type");
    if (type == "text") {
      append_line(text_, text_of_block(block));
    } else if (type == "thinking") {
      check_names(block, {"type", "thinking", "signature"});
      append_line(reasoning_, need_string(block, "thinking"));
    } else if (type == "tool_use") {
      check_names(block, {"type", "id", "name", "input", "caller", kHint});
      const Value* const input = block.get("input");
      if (input == nullptr || input->dict() == nullptr) fail("input: missing, or no object");
      calls_.items.emplace_back(
          make_tool_call(need_string(block, "id"), need_string(block, "name"), *input));
    } else {
      fail("a block of type \"", type, "\": only text, thinking and tool_use are supported");
    }
  }

  Value take() {
    Dict message = make_message("assistant", std::move(text_));
    if (!reasoning_.empty()) message.set("reasoning_content", std::move(reasoning_));
    if (!calls_.items.empty()) message.set("tool_calls", std::move(calls_));
    return message;
  }

 private:
  std::string text_, reasoning_;
  List calls_;
};

void add_message(const Dict& message, List& to) {
  check_names(message, {"role", "content"});
  const std::string role = need_string(message, "role");
  const Value* const content = message.get("content");
  if (content == nullptr || content->none()) fail("content: missing");
  if (role != "user" && role != "assistant") {
    fail("role \"", role, "\": must be user or assistant; what the system says is a field, system");
  }
  if (content->string() != nullptr) {
    to.items.emplace_back(make_message(role, *content->string()));
  } else if (role == "user") {
    UserMessage user(to);
    for_each_dict(*content, "a string or a list of blocks", [&](const Dict& b) { user.add(b); });
    user.flush();
  } else {
    AssistantMessage assistant;
    for_each_dict(*content, "a string or a list of blocks",
                  [&](const Dict& block) { assistant.add(block); });
    to.items.push_back(assistant.take());
  }
}

// The body has "messages", and optionally "system"; throws an ApiError that names one of them.
Value conversation_of_messages(const Dict& body) {
  List conversation;
  if (const Value* const system = body.get("system")) {
    std::string text = with_field("system", [&] { return text_of(*system); });
    if (!text.empty()) conversation.items.emplace_back(make_message("system", std::move(text)));
  }
  with_field("messages", [&] {
    for_each_dict(*body.get("messages"), "a list of messages",
                  [&](const Dict& message) { add_message(message, conversation); });
  });
  return conversation;
}

// Converts {"name": ..., "input_schema": ...} to {"type": "function", "function": {...}}.
Value tools_of_message(const Dict& body) {
  List tools;
  for_each_dict(*body.get("tools"), "a list of tools", [&](const Dict& tool) {
    check_names(tool, {"type", "name", "description", "input_schema", kHint});
    tools.items.emplace_back(
        make_tool(need_string(tool, "name"), tool.get("description"), tool.get("input_schema")));
  });
  return tools;
}

bool ends_with_assistant(const Dict& body) {
  const List* const messages = body.get("messages")->list();
  const Dict* const last = messages->items.back().dict();
  return need_string(*last, "role") == "assistant";
}

// --- Fields ---

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
