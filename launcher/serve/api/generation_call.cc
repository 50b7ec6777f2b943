#include "launcher/serve/api/generation_call.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {

using runtime::FinishReason;
using runtime::Update;

void append_usage(std::string& out, const Usage& usage) {
  out += R"({"prompt_tokens":)";
  append_json_number(out, usage.prompt_tokens);
  out += R"(,"total_tokens":)";
  append_json_number(out, usage.prompt_tokens + usage.completion_tokens);
  out += R"(,"completion_tokens":)";
  append_json_number(out, usage.completion_tokens);
  out += R"(,"prompt_tokens_details":{"cached_tokens":)";
  append_json_number(out, usage.cached_tokens);
  out += "}}";
}

void append_stop_reason(std::string& out, const StopReason& reason) {
  if (!reason.text.empty()) {
    append_json_string(out, reason.text);
  } else if (reason.token) {
    append_json_number(out, std::int64_t{*reason.token});
  } else {
    out += "null";
  }
}

GenerationCall::GenerationCall(const ApiContext& context, const ApiRequestInfo& info,
                               const GenerationFields& fields, std::string_view prefix)
    : context_(context),
      fields_(fields),
      n_(fields.sampling.n),
      options_{.stop = std::make_shared<const tokenizer::StopStrings>(fields.stop.items),
               .min_tokens = fields.sampling.min_tokens,
               .include_stop_str_in_output = fields.include_stop_str_in_output,
               .skip_special_tokens = fields.skip_special_tokens,
               .stop_token_ids = fields.sampling.stop_token_ids,
               .keep_token_ids = fields.return_token_ids,
               .keep_logprobs = fields.logprobs.has_value()},
      id_(std::string(prefix) + (fields.request_id.empty() ? info.id : fields.request_id)),
      created_s_(info.created_s) {
  stream_ = fields.stream;
  if (!fields.model.empty()) {
    model_ = fields.model;
  } else if (!context.model_names.empty()) {
    model_ = context.model_names.front();
  }
}

void GenerationCall::drop_lists() {
  fields_.sampling.stop_token_ids = {};
  fields_.sampling.logit_bias = {};
  fields_.sampling.allowed_token_ids = {};
  fields_.stop = fields_.bad_words = {};
}

void GenerationCall::add_request(Prompt prompt, runtime::Request request) {
  prompt.tokens = static_cast<std::int64_t>(request.prompt.size());
  prompt.open = n_;
  prompts_.push_back(std::move(prompt));
  requests_.push_back(std::move(request));
}

void GenerationCall::add_choice(std::unique_ptr<OutputParser> parser) {
  const tokenizer::Tokenizer* const tokenizer =
      context_.text == nullptr ? nullptr : &context_.text->tokenizer();
  choices_.push_back(Choice{.answer = AnswerStream(tokenizer, options_, std::move(parser))});
  ++open_;
}

void GenerationCall::add_conversation(ChatPrompt prompt, std::string_view field, bool has_tools) {
  OutputParserOptions parser{.reasoning_parser = context_.reasoning_parser,
                             .tool_call_parser = has_tools ? context_.tool_call_parser : "",
                             .seed = std::hash<std::string>()(id_)};
  apply_prompt_end(prompt.text, parser);
  options_.kept_special_tokens = kept_tokens(parser, context_.text->tokenizer());

  runtime::Request request;
  request.sampling = sampling_of(context_, fields_, prompt.ids.size(), field, std::nullopt);
  drop_lists();
  Prompt kept;
  if (fields_.return_token_ids) kept.ids = prompt.ids;
  request.prompt = std::move(prompt.ids);
  add_prompt(std::move(kept), std::move(request), [&] {
    const bool parses = !parser.reasoning_parser.empty() || !parser.tool_call_parser.empty();
    ++parser.seed;
    return parses ? make_output_parser(parser) : nullptr;
  });
}

void GenerationCall::begin(std::string& out) {
  // The engine has its own copies.
  for (runtime::Request& request : requests_) request = {};
  if (stream_) write_begin(out);
}

void GenerationCall::apply(std::size_t index, const Update& update, std::string& out) {
  Prompt& prompt = prompts_.at(index);
  const std::size_t first = index * static_cast<std::size_t>(n_);
  const std::size_t at = first + static_cast<std::size_t>(update.index);
  NVLLM_CHECK(update.index >= 0 && update.index < n_, "answer ", update.index, " of ", n_);
  AnswerStream& answer = choices_[at].answer;

  const bool had_stopped = answer.met_stop_string();
  answer.apply(update);
  if (answer.met_stop_string() && !had_stopped) ++prompt.stopped;
  if (update.finish != FinishReason::none) {
    --prompt.open, --open_;
    if (answer.met_stop_string()) --prompt.stopped;
    // The other answers find what the first one has read.
    if (update.index == 0) prompt.cached_tokens = update.cached_tokens;
  }
  const bool prompt_was_read = prompt.is_read;
  if (update.index == 0) {
    prompt.logprobs.insert(prompt.logprobs.end(), update.prompt_logprobs.begin(),
                           update.prompt_logprobs.end());
    prompt.is_read = true;
  }
  if (!stream_) return;
  if (!streams_prompt_logprobs() || prompt_was_read) return stream_delta(at, out);
  // The other answers to the prompt may have been waiting for its logprobs.
  for (std::size_t i = first; prompt.is_read && i < first + static_cast<std::size_t>(n_); ++i) {
    stream_delta(i, out);
  }
}

void GenerationCall::stream_delta(std::size_t index, std::string& out) {
  Choice& choice = choices_[index];
  AnswerStream& answer = choice.answer;
  if (choice.has_ended) return;
  const bool last = answer.ended();
  const bool is_due =
      !choice.has_started || answer.tokens() - choice.sent_tokens >= fields_.stream_interval;
  // Without a tokenizer there is no text, but clients still see the progress.
  const bool is_empty = answer.delta().empty() && context_.text != nullptr;
  if (!last && (!is_due || is_empty)) return;
  write_delta(index, last, out);
  answer.delta().clear();
  choice.sent_tokens = answer.tokens();
  choice.has_started = true;
  choice.has_ended = last;
}

bool GenerationCall::stopped(std::size_t index) const {
  const Prompt& prompt = prompts_.at(index);
  return prompt.open > 0 && prompt.stopped == prompt.open;
}

void GenerationCall::finish(std::string& out) {
  if (stream_) {
    write_end(out);
  } else {
    write_body(out);
  }
}

void GenerationCall::fail(int status, std::string_view message, std::string& out) {
  if (!stream_) return;
  out += "data: ";
  out += error_body(status, message);
  out += "\n\ndata: [DONE]\n\n";
}

void GenerationCall::append_stream_end(std::string& out, std::string_view head,
                                       const Usage& usage) const {
  if (fields_.include_usage) {
    out += "data: ";
    out += head;
    out += R"(],"usage":)";
    append_usage(out, usage);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

Usage GenerationCall::usage() const {
  Usage usage;
  for (const Prompt& prompt : prompts_) {
    usage.prompt_tokens += prompt.tokens;
    usage.cached_tokens += prompt.cached_tokens;
  }
  for (const Choice& choice : choices_) usage.completion_tokens += choice.answer.tokens();
  return usage;
}

Usage GenerationCall::usage_of(std::size_t index) const {
  const Prompt& prompt = prompts_[index / static_cast<std::size_t>(n_)];
  return {.prompt_tokens = prompt.tokens,
          .completion_tokens = choices_[index].answer.tokens(),
          .cached_tokens = prompt.cached_tokens};
}

}  // namespace nvllm::launcher
