#include "launcher/chat/conversation.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/session/messages.h"

namespace nvllm::launcher {
namespace {

bool is_system(const std::vector<Message>& messages) {
  return !messages.empty() && messages.front().role == "system";
}

// Removes the oldest question and its answer; false: there is only one question.
bool forget_oldest(std::vector<Message>& messages) {
  const auto first = messages.begin() + (is_system(messages) ? 1 : 0);
  if (first == messages.end()) return false;
  auto next = first + 1;
  while (next != messages.end() && next->role != "user") ++next;
  if (next == messages.end()) return false;
  messages.erase(first, next);
  return true;
}

}  // namespace

void Conversation::set_system(std::string content) {
  if (is_system(messages_)) messages_.erase(messages_.begin());
  if (!content.empty()) messages_.insert(messages_.begin(), {"system", std::move(content)});
}

void Conversation::reset() {
  messages_.resize(is_system(messages_) ? 1 : 0);
}

std::string Conversation::render(const std::vector<Message>& messages) const {
  jinja::List list;
  for (const Message& message : messages) {
    jinja::Dict dict;
    dict.set("role", message.role);
    dict.set("content", message.content);
    list.items.emplace_back(std::move(dict));
  }
  tokenizer::ChatTemplate::Request request;
  request.messages = std::move(list);
  request.options.set("add_generation_prompt", true);
  return model_.render_conversation(std::move(request));
}

Conversation::Prompt Conversation::prompt(std::size_t limit) {
  std::vector<Message> kept = messages_;
  while (true) {
    const std::string text = render(kept);
    const std::vector<tokenizer::TokenId> ids = model_.encode_conversation(text);
    if (ids.size() <= limit) {
      const std::size_t end = text.find_last_not_of(" \n");
      Prompt prompt{.ids = {ids.begin(), ids.end()},
                    .thinking = end != std::string::npos &&
                                std::string_view(text).substr(0, end + 1).ends_with("<think>"),
                    .forgotten = messages_.size() - kept.size()};
      messages_ = std::move(kept);
      return prompt;
    }
    if (!forget_oldest(kept)) {
      fail("the message makes a prompt of ", ids.size(), " tokens; the limit is ", limit);
    }
  }
}

std::string Conversation::to_json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Message& message : messages_) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return json_text(nlohmann::ordered_json({{"messages", std::move(list)}}), 2) + "\n";
}

void Conversation::from_json(const std::string& text) {
  const jinja::Value json = jinja::from_json(text, "the file");
  const jinja::Value* const list = json.dict() == nullptr ? nullptr : json.dict()->get("messages");
  if (list == nullptr) {
    fail(
        "not a conversation that was saved: expected {\"messages\": [{\"role\": ..., \"content\": "
        "...}]}");
  }
  if (list->list() != nullptr && list->list()->items.empty()) {
    messages_.clear();
    return;
  }
  const jinja::Value prepared = prepare_messages(*list, /*template_takes_parts=*/false);
  std::vector<Message> messages;
  for (const jinja::Value& item : prepared.list()->items) {
    const jinja::Value* const content = item.dict()->get("content");
    if (content == nullptr || content->string() == nullptr) {
      fail("messages[", messages.size(), "]: no content; a chat is made of texts");
    }
    messages.push_back({*item.dict()->get("role")->string(), *content->string()});
  }
  messages_ = std::move(messages);
}

}  // namespace nvllm::launcher
