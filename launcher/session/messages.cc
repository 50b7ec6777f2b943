#include "launcher/session/messages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {

namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// Types of text parts, and the key of the text. Clients of the Responses API name them by
// direction; a refusal is an earlier answer of the assistant.
struct TextPart {
  std::string_view type, key;
};
constexpr std::array kTextParts = {
    TextPart{"text", "text"},
    TextPart{"input_text", "text"},
    TextPart{"output_text", "text"},
    TextPart{"refusal", "refusal"},
};

const std::string* string_at(const Dict& dict, std::string_view key) {
  const Value* const value = dict.get(key);
  return value == nullptr ? nullptr : value->string();
}

// The text of a part, which may be a plain string.
const std::string& text_of(const Value& part) {
  if (part.string() != nullptr) return *part.string();
  if (part.dict() == nullptr) {
    fail("a ", part.type_name(), R"(; pass a part such as {"type": "text", "text": "Hi"})");
  }
  const std::string* const type = string_at(*part.dict(), "type");
  if (type == nullptr) fail(R"(a part without a type; pass {"type": "text", "text": "Hi"})");
  const auto* const known = std::ranges::find(kTextParts, *type, &TextPart::type);
  if (known == kTextParts.end()) {
    fail("a part of type ", *type, ": the model reads text only; pass parts of type text");
  }
  const std::string* const text = string_at(*part.dict(), known->key);
  if (text == nullptr) fail("a part of type ", *type, " without a string \"", known->key, "\"");
  return *text;
}

Value as_part(const std::string& text) {
  Dict part;
  part.set("type", "text");
  part.set("text", text);
  return part;
}

Value prepare_parts(const List& parts, bool template_takes_parts) {
  List list;
  std::string joined;
  for (std::size_t i = 0; i < parts.items.size(); ++i) {
    with_context(str("content[", i, "]"), [&] {
      const std::string& text = text_of(parts.items[i]);
      if (template_takes_parts) {
        list.items.push_back(as_part(text));
      } else {
        joined.append(i == 0 ? "" : "\n").append(text);
      }
    });
  }
  if (template_takes_parts) return list;
  return joined;
}

Value prepare_message(const Value& message, bool template_takes_parts) {
  if (message.dict() == nullptr) {
    fail("a ", message.type_name(),
         R"(; pass a message such as {"role": "user", "content": "Hi"})");
  }
  if (string_at(*message.dict(), "role") == nullptr) fail("a message without a string \"role\"");
  const Value* const content = message.dict()->get("content");
  if (content == nullptr || content->none() || content->string() != nullptr) return message;
  if (content->list() == nullptr) {
    fail("content: a ", content->type_name(), "; pass a string or a list of parts");
  }
  Dict prepared = *message.dict();
  prepared.set("content", prepare_parts(*content->list(), template_takes_parts));
  return prepared;
}

}  // namespace

Value prepare_messages(const Value& messages, bool template_takes_parts) {
  if (messages.list() == nullptr) {
    fail("messages: a ", messages.type_name(), "; they must be a list");
  }
  const auto& items = messages.list()->items;
  if (items.empty()) fail("messages: an empty list; pass at least one message");
  List prepared;
  for (std::size_t i = 0; i < items.size(); ++i) {
    with_context(str("messages[", i, "]"), [&] {
      prepared.items.push_back(prepare_message(items[i], template_takes_parts));
    });
  }
  return prepared;
}

void check_roles(const Value& messages, const tokenizer::ChatTemplate& chat_template) {
  constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                      "assistant", "tool",      "function"};
  constexpr std::size_t kMaxShown = 40;
  const auto& items = messages.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string& role = *string_at(*items[i].dict(), "role");
    if (std::ranges::find(kRoles, role) != kRoles.end()) continue;
    if (!role.empty() && chat_template.mentions(role)) continue;
    fail("messages[", i, "]: role '", role.substr(0, kMaxShown),
         "': neither the API nor the chat template knows it; pass system, user, assistant or tool");
  }
}

}  // namespace nvllm::launcher
