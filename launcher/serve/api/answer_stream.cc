#include "launcher/serve/api/answer_stream.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {

// --- AnswerStream ---

using runtime::FinishReason;
using runtime::Update;

void AnswerDelta::clear() {
  text.reasoning.clear();
  text.content.clear();
  text.tool_calls.clear();
  token_ids.clear();
  logprobs.clear();
}

AnswerStream::AnswerStream(const tokenizer::Tokenizer* tokenizer, const AnswerOptions& options,
                           std::unique_ptr<OutputParser> parser)
    : options_(options), parser_(std::move(parser)) {
  if (tokenizer == nullptr) return;
  detokenizer_.emplace(*tokenizer,
                       tokenizer::StreamOptions{.skip_special_tokens = options.skip_special_tokens,
                                                .kept_special_tokens = options.kept_special_tokens,
                                                .stops = options.stop,
                                                .min_tokens = options.min_tokens});
}

void AnswerStream::apply(const Update& update) {
  if (ended()) return;
  const std::size_t count = detokenizer_ ? detokenize(update) : update.tokens.size();
  tokens_ += static_cast<std::int64_t>(count);
  const auto first = [](const auto& list, std::size_t n) {
    return list.begin() + static_cast<std::ptrdiff_t>(std::min(n, list.size()));
  };
  if (options_.keep_token_ids) {
    delta_.token_ids.insert(delta_.token_ids.end(), update.tokens.begin(),
                            first(update.tokens, count));
  }
  if (options_.keep_logprobs) {
    delta_.logprobs.insert(delta_.logprobs.end(), update.logprobs.begin(),
                           first(update.logprobs, count));
  }
  if (update.finish != FinishReason::none || met_stop_string()) end(update);
}

// Returns how many of the tokens belong to the answer.
std::size_t AnswerStream::detokenize(const Update& update) {
  tokenizer::StreamDetokenizer& stream = *detokenizer_;
  std::size_t count = update.tokens.size();
  // The token that ended the answer has no text.
  const bool ends_with_stop_token =
      update.finish == FinishReason::stop && count > 0 && !options_.include_stop_str_in_output;
  const std::size_t texts = count - (ends_with_stop_token ? 1 : 0);
  for (std::size_t i = 0; i < texts && !stream.stopped(); ++i) {
    add_text(stream.push(static_cast<tokenizer::TokenId>(update.tokens[i])));
    if (stream.stopped()) count = i + 1;
  }
  if (update.finish != FinishReason::none) add_text(stream.finish());
  if (!stream.stopped()) return count;
  stop_reason_.text = stream.stop_string();
  if (options_.include_stop_str_in_output) add_text(stream.stop_string());
  return count;
}

void AnswerStream::end(const Update& update) {
  const FinishReason reason = met_stop_string() ? FinishReason::stop : update.finish;
  if (parser_) add_parsed(parser_->finish());
  finish_reason_ = name_of(reason);
  if (reason != FinishReason::stop) return;
  if (parser_ && parser_->called_tools()) finish_reason_ = "tool_calls";
  if (met_stop_string() || update.tokens.empty()) return;
  const std::int32_t last = update.tokens.back();
  if (std::ranges::find(options_.stop_token_ids, last) != options_.stop_token_ids.end()) {
    stop_reason_.token = last;
  }
}

void AnswerStream::add_text(std::string_view text) {
  if (text.empty()) return;
  if (!parser_) {
    delta_.text.content += text;
  } else {
    add_parsed(parser_->push(text));
  }
}

void AnswerStream::add_parsed(OutputDelta delta) {
  OutputDelta& to = delta_.text;
  to.content += delta.content;
  if (options_.include_reasoning) to.reasoning += delta.reasoning;
  for (ToolCallDelta& call : delta.tool_calls) {
    if (!options_.parallel_tool_calls && call.index > 0) continue;
    if (!to.tool_calls.empty() && to.tool_calls.back().index == call.index && call.id.empty()) {
      to.tool_calls.back().arguments += call.arguments;
    } else {
      to.tool_calls.push_back(std::move(call));
    }
  }
}

// --- AnswerBlocks ---

using Kind = AnswerBlock::Kind;

void AnswerBlocks::add(const OutputDelta& delta, Listener* listener) {
  add_text(Kind::reasoning, delta.reasoning, listener);
  add_text(Kind::text, delta.content, listener);
  for (const ToolCallDelta& call : delta.tool_calls) add_tool_call(call, listener);
}

void AnswerBlocks::add_text(Kind kind, std::string_view text, Listener* listener) {
  if (text.empty()) return;
  if (!open_ || blocks_.back().kind != kind) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      space_ += text;
      return;
    }
    open({.kind = kind}, listener);
    if (!space_.empty()) grow(std::exchange(space_, {}), listener);
  }
  grow(text, listener);
}

void AnswerBlocks::add_tool_call(const ToolCallDelta& call, Listener* listener) {
  if (!call.id.empty()) {
    space_.clear();
    open({.kind = Kind::tool_call, .id = call.id, .name = call.name}, listener);
  }
  if (!call.arguments.empty()) grow(call.arguments, listener);
}

void AnswerBlocks::open(AnswerBlock block, Listener* listener) {
  close(listener);
  blocks_.push_back(std::move(block));
  open_ = true;
  if (listener != nullptr) listener->opened(blocks_.size() - 1, blocks_.back());
}

void AnswerBlocks::grow(std::string_view text, Listener* listener) {
  blocks_.back().text += text;
  if (listener != nullptr) listener->grew(blocks_.size() - 1, blocks_.back(), text);
}

void AnswerBlocks::close(Listener* listener) {
  if (!std::exchange(open_, false)) return;
  if (listener != nullptr) listener->closed(blocks_.size() - 1, blocks_.back());
}

}  // namespace nvllm::launcher
