#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/api/dict_reading.h"
#include "launcher/serve/api/messages/message_fields.h"
#include "launcher/serve/api/request_body.h"

namespace nvllm::launcher {
namespace {

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

}  // namespace

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

}  // namespace nvllm::launcher
