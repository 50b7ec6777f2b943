#include "tokenizer/stream.h"

#include <utility>

namespace nvllm::tokenizer {

StreamDetokenizer::StreamDetokenizer(const Tokenizer& tokenizer, StreamOptions options)
    : tokenizer_(tokenizer),
      skip_special_tokens_(options.skip_special_tokens),
      decoder_(tokenizer.decoder()),
      stops_(options.stop_strings) {}

std::string StreamDetokenizer::push(TokenId id) {
  std::string text;
  if (stopped_) return text;
  const auto token = tokenizer_.token_text(id);
  if (!token || (skip_special_tokens_ && tokenizer_.is_special(id))) return text;
  decoder_.push(*token, text);
  return release(std::move(text));
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
    state_ = stops_.next(state_, all[at]);
    if (const std::uint32_t length = stops_.found(state_); length > 0) {
      stopped_ = true;
      stop_string_ = all.substr(at + 1 - length, length);
      all.resize(at + 1 - length);
      return all;
    }
  }
  const std::size_t safe = all.size() - stops_.held(state_);
  held_ = all.substr(safe);
  all.resize(safe);
  return all;
}

}  // namespace nvllm::tokenizer
