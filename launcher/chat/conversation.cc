#include "launcher/chat/conversation.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/chat/streamed_answer.h"
#include "launcher/session/text_model.h"

namespace nvllm::launcher {

void Conversation::set_system(std::string content) {
  if (has_system()) messages_.erase(messages_.begin());
  if (!content.empty()) messages_.insert(messages_.begin(), {"system", std::move(content)});
}

std::string Conversation::system() const {
  return has_system() ? messages_.front().content : "";
}

Message Conversation::take_last() {
  Message last = std::move(messages_.back());
  messages_.pop_back();
  return last;
}

void Conversation::reset() {
  messages_.resize(has_system() ? 1 : 0);
  forgotten_ = 0;
}

// The messages without the `forgotten` oldest ones after the system message.
std::vector<Message> Conversation::kept(std::size_t forgotten) const {
  const auto first = messages_.begin() + (has_system() ? 1 : 0);
  std::vector<Message> all(messages_.begin(), first);
  all.insert(all.end(), first + static_cast<std::ptrdiff_t>(forgotten), messages_.end());
  return all;
}

// Also drops the oldest remaining question and its answer; returns the same number if it is the
// only one.
std::size_t Conversation::forget_one_more(std::size_t forgotten) const {
  const std::size_t system = has_system() ? 1 : 0;
  for (std::size_t next = system + forgotten + 1; next < messages_.size(); ++next) {
    if (messages_[next].role == "user") return next - system;
  }
  return forgotten;
}

tokenizer::MarkedText Conversation::render(const std::vector<Message>& messages) const {
  jinja::List list;
  const bool channels = writes_channels(model_.tokenizer());
  for (const Message& message : messages) {
    jinja::Dict dict;
    dict.set("role", message.role);
    const bool answer = channels && message.role == "assistant";
    dict.set("content", answer ? without_reasoning(message.content) : message.content);
    list.items.emplace_back(std::move(dict));
  }
  tokenizer::ChatTemplate::Request request;
  request.messages = std::move(list);
  request.options.set("add_generation_prompt", true);
  return model_.render_conversation(std::move(request));
}

Conversation::Prompt Conversation::prompt(std::size_t limit) {
  for (std::size_t forgotten = forgotten_;;) {
    const tokenizer::MarkedText rendered = render(kept(forgotten));
    const std::vector<tokenizer::TokenId> ids = model_.encode_conversation(rendered);
    const std::string& text = rendered.text;
    if (ids.size() <= limit) {
      const std::size_t end = text.find_last_not_of(" \n");
      Prompt prompt{.ids = {ids.begin(), ids.end()},
                    .thinking = end != std::string::npos &&
                                std::string_view(text).substr(0, end + 1).ends_with("<think>"),
                    .forgotten = forgotten - forgotten_};
      if (prompt.forgotten > 0) {
        prompt.first_forgotten = messages_[forgotten_ + (has_system() ? 1 : 0)].content;
      }
      forgotten_ = forgotten;
      return prompt;
    }
    const std::size_t more = forget_one_more(forgotten);
    if (more == forgotten) {
      fail("the message makes a prompt of ", ids.size(), " tokens; the limit is ", limit);
    }
    forgotten = more;
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
    forgotten_ = 0;
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
  forgotten_ = 0;
}

}  // namespace nvllm::launcher
