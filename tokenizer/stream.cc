#include "tokenizer/stream.h"

#include <algorithm>
#include <utility>

namespace nvllm::tokenizer {

StreamDetokenizer::StreamDetokenizer(const Tokenizer& tokenizer, StreamOptions options)
    : tokenizer_(tokenizer),
      skip_special_tokens_(options.skip_special_tokens),
      kept_special_tokens_(std::move(options.kept_special_tokens)),
      decoder_(tokenizer.decoder()),
      stops_(options.stops ? std::move(options.stops)
                           : std::make_shared<const StopStrings>(options.stop_strings)),
      unsearched_(options.min_tokens) {}

bool StreamDetokenizer::skips(TokenId id) const {
  return skip_special_tokens_ && tokenizer_.is_special(id) &&
         std::ranges::find(kept_special_tokens_, id) == kept_special_tokens_.end();
}

std::string StreamDetokenizer::push(TokenId id) {
  std::string text;
  if (stopped_) return text;
  const bool searches = unsearched_ <= 0;
  if (!searches) --unsearched_;
  const auto token = tokenizer_.token_text(id);
  if (!token || skips(id)) return text;
  decoder_.push(*token, text);
  return searches ? release(std::move(text)) : text;
}

std::string StreamDetokenizer::finish() {
  std::string text;
  if (stopped_) return text;
  decoder_.finish(text);
  text = release(std::move(text));
  return stopped_ ? text : text.append(std::exchange(held_, {}));
}

std::string StreamDetokenizer::release(std::string text) {
  const std::size_t before = held_.size();
  std::string all = std::exchange(held_, {}).append(text);
  for (std::size_t at = before; at < all.size(); ++at) {
    state_ = stops_->next(state_, all[at]);
    if (const std::uint32_t length = stops_->found(state_); length > 0) {
      stopped_ = true;
      stop_string_ = all.substr(at + 1 - length, length);
      all.resize(at + 1 - length);
      return all;
    }
  }
  const std::size_t safe = all.size() - stops_->held(state_);
  held_ = all.substr(safe);
  all.resize(safe);
  return all;
}

StopStrings::StopStrings(const std::vector<std::string>& strings) : nodes_(1) {
  for (const std::string& text : strings) {
    State state = kStart;
    for (const char byte : text) {
      State next = child(state, byte);
      if (next == 0) {
        next = static_cast<State>(nodes_.size());
        nodes_.push_back(
            {.byte = byte, .sibling = nodes_[state].first_child, .depth = nodes_[state].depth + 1});
        nodes_[state].first_child = next;
      }
      state = next;
    }
    nodes_[state].found = nodes_[state].depth;
  }
  link_fallbacks();
}

StopStrings::State StopStrings::child(State state, char byte) const {
  State next = nodes_[state].first_child;
  while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].sibling;
  return next;
}

// Breadth first, so that the shorter fallbacks are complete when they are needed.
void StopStrings::link_fallbacks() {
  std::vector<State> queue = {kStart};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const State state = queue[i];
    for (State c = nodes_[state].first_child; c != 0; c = nodes_[c].sibling) {
      nodes_[c].fallback = state == kStart ? kStart : next(nodes_[state].fallback, nodes_[c].byte);
      nodes_[c].found = std::max(nodes_[c].found, nodes_[nodes_[c].fallback].found);
      queue.push_back(c);
    }
  }
}

StopStrings::State StopStrings::next(State state, char byte) const {
  for (;; state = nodes_[state].fallback) {
    if (const State found = child(state, byte); found != 0) return found;
    if (state == kStart) return kStart;
  }
}

}  // namespace nvllm::tokenizer
