// POST /v1/completions: continues prompts.
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/serve/api/generation_call.h"
#include "launcher/serve/api/generation_fields.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::int32_t kDefaultMaxTokens = 16;
constexpr std::size_t kMaxChoices = 16384;

struct CompletionFields : GenerationFields {
  bool echo = false;
};

void store_logprobs(const Json& value, CompletionFields& fields) {
  read_value(value, fields.logprobs);
  check_logprobs_count(*fields.logprobs);
}

constexpr Field<CompletionFields> kFields[] = {
    {"prompt", store_nothing<CompletionFields>},
    {"echo", store_value<&CompletionFields::echo, CompletionFields>},
    {"logprobs", store_logprobs},
};

constexpr RefusedField kRefused[] = {
    {"suffix", "text cannot be inserted before a suffix; leave it out", R"("")"},
    {"max_completion_tokens", "is a field of chats; pass max_tokens"},
    {"messages", "is a field of /v1/chat/completions; pass prompt"},
};

struct CompletionPrompt {
  std::string text = "";  // where it was given as one
  std::vector<std::int32_t> ids = {};
};

CompletionPrompt read_prompt(const ApiContext& context, const CompletionFields& fields,
                             const Json& value) {
  CompletionPrompt prompt;
  if (value.is_string()) {
    read_value(value, prompt.text);
    prompt.ids =
        encode_text(context, "prompt", prompt.text, fields.add_special_tokens.value_or(true));
  } else if (value.is_array()) {
    with_field("prompt", [&] { read_value(value, prompt.ids); });
  } else {
    throw ApiError(400, str("prompt: ", shown(value), ": neither a string nor a list of token ids"),
                   "prompt");
  }
  const std::size_t whole = prompt.ids.size();
  truncate_prompt(context, fields, prompt.ids);
  if (prompt.ids.size() < whole) prompt.text.clear();
  return prompt;
}

// A string, a list of strings, a list of token ids, or a list of such lists.
std::vector<CompletionPrompt> read_prompts(const ApiContext& context,
                                           const CompletionFields& fields, const Json& body) {
  const auto found = body.find("prompt");
  if (found == body.end() || found->is_null()) {
    throw ApiError(400, "prompt: missing; pass a string, or a list of token ids", "prompt");
  }
  const Json& value = *found;
  std::vector<CompletionPrompt> prompts;
  const bool several = value.is_array() && !value.empty() && !value[0].is_number();
  if (!several) {
    prompts.push_back(read_prompt(context, fields, value));
    return prompts;
  }
  const std::size_t choices = value.size() * static_cast<std::size_t>(fields.sampling.n);
  if (choices > kMaxChoices) {
    throw ApiError(400,
                   str("prompt: ", value.size(), " prompts with n ", fields.sampling.n, " ask for ",
                       choices, " choices; at most ", kMaxChoices, " are allowed"),
                   "prompt");
  }
  for (const Json& item : value) prompts.push_back(read_prompt(context, fields, item));
  return prompts;
}

class CompletionCall final : public GenerationCall {
 public:
  CompletionCall(const ApiContext& context, const ApiRequestInfo& info, CompletionFields fields,
                 std::vector<CompletionPrompt> prompts)
      : GenerationCall(context, info, fields, "cmpl-"),
        echo_(fields.echo),
        generates_(!(fields.echo && fields.max_tokens == 0)) {
    if (!generates_) fields.max_tokens = 1;  // the engine always computes at least one
    if (echo_ && fields.logprobs && !fields.sampling.prompt_logprobs) {
      fields.sampling.prompt_logprobs = fields.logprobs;
    }
    for (CompletionPrompt& prompt : prompts) add(fields, std::move(prompt));
    drop_lists();
    head_ = str(R"("object":"text_completion","created":)", created_s(), R"(,"model":)");
    append_json_string(head_, model());
    std::string id;
    append_json_string(id, this->id());
    head_ = str(R"({"id":)", id, ",", head_, R"(,"choices":[)");
  }

 private:
  void add(const CompletionFields& fields, CompletionPrompt given) {
    Prompt prompt;
    runtime::Request request;
    request.sampling =
        sampling_of(context(), fields, given.ids.size(), "prompt", kDefaultMaxTokens);
    if (echo_) prompt.text = echoed_text(given);
    if (echo_ || fields.return_token_ids) prompt.ids = given.ids;
    request.prompt = std::move(given.ids);
    add_prompt(std::move(prompt), std::move(request));
  }

  std::string echoed_text(CompletionPrompt& given) const {
    if (!given.text.empty() || context().text == nullptr) return std::move(given.text);
    const std::vector<tokenizer::TokenId> ids(given.ids.begin(), given.ids.end());
    return context().text->tokenizer().decode(ids, false);
  }

  bool streams_prompt_logprobs() const override { return echo_ && fields().logprobs.has_value(); }

  void write_delta(std::size_t index, bool last, std::string& out) override {
    out += "data: ";
    out += head_;
    append_choice(index, last, out);
    out += R"(],"usage":)";
    if (fields().continuous_usage_stats) {
      append_usage(out, reported(usage_of(index)));
    } else {
      out += "null";
    }
    out += "}\n\n";
  }

  void write_end(std::string& out) override { append_stream_end(out, head_, reported(usage())); }

  void write_body(std::string& out) override {
    out += head_;
    for (std::size_t i = 0; i < choice_count(); ++i) {
      if (i > 0) out += ',';
      append_choice(i, true, out);
    }
    out += R"(],"usage":)";
    append_usage(out, reported(usage()));
    out += '}';
  }

  // A request for no tokens does not report the token that the engine computed.
  Usage reported(Usage usage) const {
    if (!generates_) usage.completion_tokens = 0;
    return usage;
  }

  void append_choice(std::size_t index, bool last, std::string& out) {
    Choice& choice = this->choice(index);
    if (!generates_) choice.answer.delta().clear();
    const bool echoes = echo_ && !choice.has_started;
    out += R"({"index":)";
    append_json_number(out, static_cast<std::int64_t>(index));
    out += R"(,"text":")";
    if (echoes) append_json_escaped(out, prompt_of(index).text);
    append_json_escaped(out, choice.answer.delta().text.content);
    out += R"(","logprobs":)";
    append_logprobs(index, echoes, out);
    append_finish(choice.answer, last, out);
    append_extras(index, out);
    out += '}';
  }

  void append_logprobs(std::size_t index, bool echoes, std::string& out) {
    Choice& choice = this->choice(index);
    if (!fields().logprobs) {
      out += "null";
      return;
    }
    const Prompt& prompt = prompt_of(index);
    EchoedLogprobs echoed;
    if (echoes) echoed = {.first = prompt.ids.front(), .rest = &prompt.logprobs};
    append_completion_logprobs(out, names(), echoed, choice.answer.delta().logprobs,
                               choice.logprobs_text);
  }

  static void append_finish(const AnswerStream& answer, bool last, std::string& out) {
    if (!last) {
      out += R"(,"finish_reason":null,"stop_reason":null)";
      return;
    }
    out += R"(,"finish_reason":")";
    out += answer.finish_reason();
    out += R"(","stop_reason":)";
    append_stop_reason(out, answer.stop_reason());
  }

  void append_extras(std::size_t index, std::string& out) {
    Choice& choice = this->choice(index);
    if (fields().sampling.prompt_logprobs) {
      out += R"(,"prompt_logprobs":)";
      append_prompt_logprobs(out, names(), prompt_of(index).logprobs);
    }
    if (!fields().return_token_ids) return;
    if (!choice.has_started) {
      out += R"(,"prompt_token_ids":)";
      append_json_ids(out, prompt_of(index).ids);
    }
    out += R"(,"token_ids":)";
    append_json_ids(out, choice.answer.delta().token_ids);
    if (!fields().logprobs) return;
    out += R"(,"sample_logprobs":)";
    append_sample_logprobs(out, names(), choice.answer.delta().logprobs);
  }

  bool echo_;
  bool generates_;    // false: only the prompt is requested
  std::string head_;  // of every event and of the body, up to the choices
};

}  // namespace

std::unique_ptr<ApiCall> parse_completion(const ApiContext& context, const ApiRequestInfo& info,
                                          std::string_view body) {
  const Json json = parse_body(body);
  auto fields = read_fields<CompletionFields>(context, json, kFields, kRefused);
  std::vector<CompletionPrompt> prompts = read_prompts(context, fields, json);
  return std::make_unique<CompletionCall>(context, info, std::move(fields), std::move(prompts));
}

std::vector<std::string> completion_field_names() {
  return accepted_names<CompletionFields>(kFields, kRefused);
}

}  // namespace nvllm::launcher
