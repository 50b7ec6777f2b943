// GenerationCall: base class of calls that generate text, independent of the form of their
// responses: prompts, answers, usage, and when a stream sends events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/api/answer_stream.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/conversation.h"
#include "launcher/serve/api/generation_fields.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {

// Token counts of a request, as responses report them.
struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};
// {"prompt_tokens": ..., ...} in OpenAI's format.
void append_usage(std::string& out, const Usage& usage);
// The string, the token's id, or null.
void append_stop_reason(std::string& out, const StopReason& reason);

class GenerationCall : public ApiCall {
 public:
  // prefix: of the response's id, such as "cmpl-".
  GenerationCall(const ApiContext& context, const ApiRequestInfo& info,
                 const GenerationFields& fields, std::string_view prefix);

  void begin(std::string& out) final;
  void apply(std::size_t index, const runtime::Update& update, std::string& out) final;
  bool stopped(std::size_t index) const final;
  bool done() const final { return open_ == 0; }
  void finish(std::string& out) final;
  void fail(int status, std::string_view message, std::string& out) override;

 protected:
  struct Prompt {
    std::int64_t tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int32_t open = 0;     // answers that the engine works on
    std::int32_t stopped = 0;  // how many of these have reached a stop string
    // Kept if the response contains them.
    std::string text = "";
    std::vector<std::int32_t> ids = {};
    std::vector<runtime::TokenLogprobs> logprobs = {};
    bool is_read = false;  // whether the logprobs have arrived
  };
  struct Choice {
    AnswerStream answer;
    std::int64_t sent_tokens = 0;       // number of tokens sent in a stream
    bool has_started = false;           // a stream has sent something
    bool has_ended = false;             // a stream has sent the end
    CompletionText logprobs_text = {};  // of the tokens whose logprobs were written
  };

  // For constructors: adds an engine request and its n choices. make_parser(): called for each.
  template <typename MakeParser>
  void add_prompt(Prompt prompt, runtime::Request request, MakeParser make_parser) {
    add_request(std::move(prompt), std::move(request));
    for (std::int32_t i = 0; i < n_; ++i) add_choice(make_parser());
  }
  void add_prompt(Prompt prompt, runtime::Request request) {
    add_prompt(std::move(prompt), std::move(request), [] { return nullptr; });
  }

  // The same for a conversation, whose answers are parsed for reasoning, and for tool calls if the
  // request has tools. `field`: the field from which the prompt was created.
  void add_conversation(ChatPrompt prompt, std::string_view field, bool has_tools);

  // Written by each endpoint. Choices are numbered prompt by prompt. First, the start of a stream:
  virtual void write_begin(std::string& /*out*/) {}
  // Writes choice.answer.delta() to a stream; last: with the finish reason.
  virtual void write_delta(std::size_t index, bool last, std::string& out) = 0;
  // A stream's end, after the last delta of all choices.
  virtual void write_end(std::string& out) = 0;
  virtual void write_body(std::string& out) = 0;
  // Whether a stream contains the prompt's logprobs, and must wait for them.
  virtual bool streams_prompt_logprobs() const { return false; }

  std::size_t choice_count() const { return choices_.size(); }
  Choice& choice(std::size_t index) { return choices_[index]; }
  Prompt& prompt_of(std::size_t choice) { return prompts_[choice / static_cast<std::size_t>(n_)]; }
  std::vector<Prompt>& prompts() { return prompts_; }
  Usage usage() const;                      // of the whole response
  Usage usage_of(std::size_t index) const;  // of one choice so far

  const ApiContext& context() const { return context_; }
  const GenerationFields& fields() const { return fields_; }
  TokenNames names() const {
    return {.tokenizer = context_.text == nullptr ? nullptr : &context_.text->tokenizer(),
            .as_ids = fields_.return_tokens_as_token_ids};
  }
  AnswerOptions& answer_options() { return options_; }
  const std::string& id() const { return id_; }
  std::int64_t created_s() const { return created_s_; }
  const std::string& model() const { return model_; }

  // The end of OpenAI's streams: the usage, if requested, in an event that starts with `head`, and
  // [DONE].
  void append_stream_end(std::string& out, std::string_view head, const Usage& usage) const;

  // Thousands of calls may be open, so lists in their fields are freed once the requests have been
  // created.
  void drop_lists();

 private:
  void add_request(Prompt prompt, runtime::Request request);
  void add_choice(std::unique_ptr<OutputParser> parser);
  void stream_delta(std::size_t index, std::string& out);

  const ApiContext& context_;
  GenerationFields fields_;
  const std::int32_t n_;
  AnswerOptions options_;
  std::string id_;
  std::int64_t created_s_;
  std::string model_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
  std::int64_t open_ = 0;  // answers that the engine works on
};

}  // namespace nvllm::launcher
