#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/api/dict_reading.h"
#include "launcher/serve/api/request_body.h"
#include "launcher/serve/api/responses/response_fields.h"

namespace nvllm::launcher {
namespace {

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

}  // namespace

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

Value tools_of_response(const Dict& body) {
  List tools;
  for_each_dict(*body.get("tools"), "a list of tools", [&](const Dict& tool) {
    check_names(tool, {"type", "name", "description", "parameters", "strict"});
    tools.items.emplace_back(
        make_tool(need_string(tool, "name"), tool.get("description"), tool.get("parameters")));
  });
  return tools;
}

}  // namespace nvllm::launcher
