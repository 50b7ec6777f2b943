#include "launcher/serve/api/answer_stream.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {

using runtime::FinishReason;
using runtime::Update;

void AnswerParts::clear() {
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
    parts_.token_ids.insert(parts_.token_ids.end(), update.tokens.begin(),
                            first(update.tokens, count));
  }
  if (options_.keep_logprobs) {
    parts_.logprobs.insert(parts_.logprobs.end(), update.logprobs.begin(),
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
    parts_.text.content += text;
  } else {
    add_parsed(parser_->push(text));
  }
}

void AnswerStream::add_parsed(OutputDelta delta) {
  OutputDelta& to = parts_.text;
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

}  // namespace nvllm::launcher
