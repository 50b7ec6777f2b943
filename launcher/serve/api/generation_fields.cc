#include "launcher/serve/api/generation_fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "launcher/cli/suggestions.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {

// --- The body ---

nlohmann::json parse_body(std::string_view body) {
  nlohmann::json json;
  try {
    json = read_bounded_json(body, {});
  } catch (const BadJson& error) {
    const std::string& field = error.field();
    throw ApiError(400, str(field.empty() ? "the body" : shown(field), ": ", error.what()), field);
  }
  if (!json.is_object()) {
    throw ApiError(400, str("the body holds ", shown(json), ", not an object"));
  }
  return json;
}

void read_value(const nlohmann::json& value, StringList& to) {
  if (value.is_array() && value.size() > StringList::kMaxCount) {
    fail(value.size(), " strings: at most ", StringList::kMaxCount, " are allowed");
  }
  to.items = read_texts(value);
  std::size_t bytes = 0;
  for (const std::string& text : to.items) bytes += text.size();
  if (bytes > StringList::kMaxBytes) {
    fail(bytes, " bytes of strings: at most ", StringList::kMaxBytes, " are allowed");
  }
}

// --- Fields of all endpoints that generate ---

namespace {

using Json = nlohmann::json;
using runtime::SamplingParams;
using Fields = GenerationFields;

constexpr std::int32_t kMaxAnswersPerPrompt = 1024;
constexpr std::size_t kMaxIdBytes = 128;

void store_seed(const Json& value, Fields& fields) {
  constexpr std::int64_t kRandom = -1;
  fields.sampling.seed.reset();
  if (value == kRandom) return;
  if (value.is_number_integer() && !value.is_number_unsigned()) {
    fields.sampling.seed = static_cast<std::uint64_t>(value.get<std::int64_t>());
  } else {
    read_value(value, fields.sampling.seed);
  }
}

void store_n(const Json& value, Fields& fields) {
  read_value(value, fields.sampling.n);
  if (fields.sampling.n < 1 || fields.sampling.n > kMaxAnswersPerPrompt) {
    fail(fields.sampling.n, ": must be from 1 to ", kMaxAnswersPerPrompt);
  }
}

void store_prompt_logprobs(const Json& value, Fields& fields) {
  read_value(value, fields.sampling.prompt_logprobs);
  check_logprobs_count(*fields.sampling.prompt_logprobs);
}

void store_logit_bias(const Json& value, Fields& fields) {
  constexpr float kMaxBias = 100;
  read_value(value, fields.sampling.logit_bias);
  for (const auto& [id, bias] : fields.sampling.logit_bias) {
    if (!(std::abs(bias) <= kMaxBias)) fail(bias, " for token ", id, ": must be from -100 to 100");
  }
}

void store_request_id(const Json& value, Fields& fields) {
  read_value(value, fields.request_id);
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  if (fields.request_id.size() > kMaxIdBytes ||
      !std::ranges::all_of(fields.request_id, printable)) {
    fail(shown(value), ": must be at most ", kMaxIdBytes, " printable ASCII characters");
  }
}

void store_truncation(const Json& value, Fields& fields) {
  read_value(value, fields.truncate_prompt_tokens);
  const std::int32_t tokens = *fields.truncate_prompt_tokens;
  if (tokens < -1 || tokens == 0) fail(tokens, ": must be at least 1, or -1 for what fits");
}

void store_priority(const Json& value, Fields& /*fields*/) {
  std::int32_t priority = 0;
  read_value(value, priority);
  if (priority != 0)
    fail(priority, ": requests are served in the order of their arrival; leave it out");
}

void store_stream_interval(const Json& value, Fields& fields) {
  read_value(value, fields.stream_interval);
  if (fields.stream_interval < 1) fail(fields.stream_interval, ": must be at least 1");
}

void store_stream_options(const Json& value, Fields& fields) {
  if (!value.is_object()) fail(shown(value), ": not an object such as {\"include_usage\": true}");
  fields.has_stream_options = true;
  for (const auto& [name, item] : value.items()) {
    if (item.is_null()) continue;
    with_context(name, [&, &n = name, &v = item] {
      if (n == "include_usage") return read_value(v, fields.include_usage);
      if (n == "continuous_usage_stats") return read_value(v, fields.continuous_usage_stats);
      fail("no such option; there are include_usage and continuous_usage_stats");
    });
  }
}

void store_response_format(const Json& value, Fields& /*fields*/) {
  if (!value.is_object() || !value.contains("type")) {
    fail(shown(value), ": not an object such as {\"type\": \"text\"}");
  }
  if (value["type"] != "text") {
    fail("type ", shown(value["type"]), ": structured output is not supported; only \"text\" is");
  }
}

// In addition to those of read_sampling_field().
constexpr Field<Fields> kFields[] = {
    {"model", store_value<&Fields::model, Fields>},
    {"request_id", store_request_id},
    {"priority", store_priority},
    {"n", store_n},
    {"seed", store_seed},
    {"max_tokens", store_value<&Fields::max_tokens, Fields>},
    {"stop", store_value<&Fields::stop, Fields>},
    {"include_stop_str_in_output", store_value<&Fields::include_stop_str_in_output, Fields>},
    {"bad_words", store_value<&Fields::bad_words, Fields>},
    {"logit_bias", store_logit_bias},
    {"prompt_logprobs", store_prompt_logprobs},
    {"skip_special_tokens", store_value<&Fields::skip_special_tokens, Fields>},
    {"truncate_prompt_tokens", store_truncation},
    {"add_special_tokens", store_value<&Fields::add_special_tokens, Fields>},
    {"return_token_ids", store_value<&Fields::return_token_ids, Fields>},
    {"return_tokens_as_token_ids", store_value<&Fields::return_tokens_as_token_ids, Fields>},
    {"stream", store_value<&Fields::stream, Fields>},
    {"stream_options", store_stream_options},
    {"stream_interval", store_stream_interval},
    {"response_format", store_response_format},
    // Detokenizers here never insert spaces between special tokens, nor does vLLM's with
    // tokenizer.json.
    {"spaces_between_special_tokens", store_nothing<Fields>},
    // These concern a client's account with a service, which does not exist here.
    {"user", store_nothing<Fields>},
    {"metadata", store_nothing<Fields>},
    {"store", store_nothing<Fields>},
    {"service_tier", store_nothing<Fields>},
    {"safety_identifier", store_nothing<Fields>},
    // A hint for caches of several machines; the prefix cache here needs none.
    {"prompt_cache_key", store_nothing<Fields>},
};

constexpr const char* kNoStructure = "structured output is not supported; leave it out";
constexpr const char* kTextOnly = "only text is supported; leave it out";

constexpr RefusedField kRefused[] = {
    {"best_of", "does not exist any more; ask for n answers"},
    {"use_beam_search", "beam search is not supported; leave it out", "false"},
    {"length_penalty", "beam search is not supported; leave it out", "1"},
    {"early_stopping", "beam search is not supported; leave it out", "false"},
    {"structured_outputs", kNoStructure, "{}"},
    {"guided_json", kNoStructure},
    {"guided_regex", kNoStructure},
    {"guided_choice", kNoStructure},
    {"guided_grammar", kNoStructure},
    {"guided_decoding_backend", kNoStructure},
    {"guided_whitespace_pattern", kNoStructure},
    {"cache_salt", "the prefix cache has no salt: all requests share it; leave it out"},
    {"mm_processor_kwargs", kTextOnly, "{}"},
    {"logits_processors", "not supported; leave it out", "[]"},
    {"kv_transfer_params", "not supported; leave it out", "{}"},
    {"vllm_xargs", "not supported; leave it out", "{}"},
    {"prompt_cache_retention", "not supported; leave it out"},
    {"prompt_embeds", "not supported; pass a text or token ids"},
};

// The messages of check_sampling_params() start with the field's name.
void check_ranges(const SamplingParams& params, const std::string& max_tokens_field) {
  constexpr std::string_view kMaxTokens = "max_tokens";
  try {
    runtime::check_sampling_params(params);
  } catch (const Error& error) {
    std::string message = error.what();
    if (const std::size_t at = message.find(kMaxTokens); at != std::string::npos) {
      message.replace(at, kMaxTokens.size(), max_tokens_field);
    }
    throw ApiError(400, message, message.substr(0, message.find(' ')));
  }
}

// The token sequences that spell the words, at the start of a text and after a space.
void add_bad_words(const TextModel& text, const StringList& words, SamplingParams& params) {
  const TextInput input(text, {});
  for (const std::string& word : words.items) {
    for (auto& spelling : input.encode_bad_word(word)) {
      params.bad_words.push_back(std::move(spelling));
    }
  }
}

void need_text(const ApiContext& context, const char* field, bool used) {
  if (used && context.text == nullptr) {
    throw ApiError(400, str(field, ": needs a tokenizer, and the model has none; leave it out"),
                   field);
  }
}

// false: there is none of this name.
bool read_sampling(const std::string& name, const Json& value, SamplingParams& params) {
  try {
    return read_sampling_field(name, value, params);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), name);  // the message contains the name
  }
}

}  // namespace

void check_logprobs_count(std::int32_t count) {
  if (count < 0 || count > runtime::kMaxLogprobs) {
    fail(count, ": must be from 0 to ", runtime::kMaxLogprobs);
  }
}

bool read_generation_field(const std::string& name, const Json& value, GenerationFields& fields) {
  const auto* const field =
      std::ranges::find(kFields, std::string_view(name), &Field<Fields>::name);
  if (field != std::end(kFields)) {
    if (!value.is_null()) with_field(name, [&] { field->store(value, fields); });
    return true;
  }
  if (value.is_null()) {
    const std::vector<std::string>& names = sampling_field_names();
    if (std::ranges::find(names, name) != names.end()) return true;
  } else {
    check_refused(name, value, kRefused);
    if (read_sampling(name, value, fields.sampling)) return true;
  }
  return std::ranges::find(kRefused, std::string_view(name), &RefusedField::name) !=
         std::end(kRefused);
}

std::vector<std::string> generation_field_names() {
  std::vector<std::string> names = sampling_field_names();
  for (const Field<Fields>& field : kFields) {
    if (std::ranges::find(names, field.name) == names.end()) names.emplace_back(field.name);
  }
  return names;
}

void refuse_unknown_field(const std::string& name, std::vector<std::string> known) {
  constexpr std::size_t kMaxNameBytes = 64;  // longer ones are not suggested
  for (std::string& field : generation_field_names()) known.push_back(std::move(field));
  const std::string nearest = name.size() > kMaxNameBytes ? "" : nearest_name(name, known);
  std::string message = str(shown(name), ": no such field");
  if (!nearest.empty()) message += "; did you mean '" + nearest + "'?";
  throw ApiError(400, message, name.substr(0, kMaxNameBytes));
}

void check_refused(const std::string& name, const Json& value,
                   std::span<const RefusedField> refused) {
  const auto field = std::ranges::find(refused, std::string_view(name), &RefusedField::name);
  if (field == refused.end() || (*field->neutral != 0 && value == Json::parse(field->neutral))) {
    return;
  }
  throw ApiError(400, str(name, ": ", field->why), name);
}

void check_model(const ApiContext& context, const std::string& model) {
  const std::vector<std::string>& names = context.model_names;
  if (std::ranges::find(names, model) != names.end()) return;
  throw ApiError(404,
                 str("The model ", shown(model), " does not exist; this server has ",
                     names.empty() ? "none" : names.front()),
                 "model");
}

void check_fields(const ApiContext& context, const GenerationFields& fields) {
  if (!fields.model.empty()) check_model(context, fields.model);
  need_text(context, "stop", !fields.stop.items.empty());
  need_text(context, "bad_words", !fields.bad_words.items.empty());
  if (fields.has_stream_options && !fields.stream) {
    throw ApiError(400, "stream_options: only a stream has options; pass \"stream\": true",
                   "stream_options");
  }
  if (fields.stream && fields.sampling.prompt_logprobs) {
    throw ApiError(400, "prompt_logprobs: not in a stream; pass \"stream\": false",
                   "prompt_logprobs");
  }
  if (fields.truncate_prompt_tokens && context.max_model_len > 0 &&
      *fields.truncate_prompt_tokens > context.max_model_len) {
    throw ApiError(400,
                   str("truncate_prompt_tokens ", *fields.truncate_prompt_tokens,
                       ": must be at most max_model_len, which is ", context.max_model_len),
                   "truncate_prompt_tokens");
  }
}

namespace {

template <typename Text>
std::vector<std::int32_t> encode_checked(const ApiContext& context, std::string_view field,
                                         const Text& text, std::size_t bytes,
                                         bool add_special_tokens) {
  constexpr std::uint64_t kMaxTokenBytes = 1024;  // no tokenizer has longer tokens
  if (context.text == nullptr) {
    throw ApiError(400,
                   str(field, ": the model has no tokenizer; pass token ids to /v1/completions"),
                   std::string(field));
  }
  if (context.max_model_len > 0 &&
      bytes / kMaxTokenBytes > static_cast<std::uint64_t>(context.max_model_len)) {
    throw ApiError(400,
                   str(field, ": a text of ", bytes, " bytes is longer than max_model_len ",
                       context.max_model_len, " tokens can be; shorten it"),
                   std::string(field));
  }
  const std::vector<tokenizer::TokenId> ids = add_special_tokens
                                                  ? context.text->encode_prompt(text)
                                                  : context.text->tokenizer().encode(text, false);
  return {ids.begin(), ids.end()};
}

}  // namespace

std::vector<std::int32_t> encode_text(const ApiContext& context, std::string_view field,
                                      std::string_view text, bool add_special_tokens) {
  return encode_checked(context, field, text, text.size(), add_special_tokens);
}

std::vector<std::int32_t> encode_text(const ApiContext& context, std::string_view field,
                                      const tokenizer::MarkedText& text, bool add_special_tokens) {
  return encode_checked(context, field, text, text.text.size(), add_special_tokens);
}

void truncate_prompt(const ApiContext& context, const GenerationFields& fields,
                     std::vector<std::int32_t>& prompt) {
  if (!fields.truncate_prompt_tokens) return;
  // What fits leaves room for the answer, of which there is at least one token.
  const std::int64_t room = context.max_model_len - std::max(fields.max_tokens.value_or(1), 1);
  const std::int64_t kept =
      *fields.truncate_prompt_tokens < 0 ? room : *fields.truncate_prompt_tokens;
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (kept > 0 && size > kept) prompt.erase(prompt.begin(), prompt.begin() + (size - kept));
}

SamplingParams sampling_of(const ApiContext& context, const GenerationFields& fields,
                           std::size_t prompt_tokens, std::string_view prompt_field,
                           std::optional<std::int32_t> default_max_tokens) {
  const auto prompt = static_cast<std::int64_t>(prompt_tokens);
  const std::int64_t room = context.max_model_len - prompt;
  const std::string field(prompt_field);
  if (prompt == 0) throw ApiError(400, field + ": an empty prompt", field);
  if (context.max_model_len > 0 && room < 1) {
    throw ApiError(
        400,
        str(field, ": ", prompt, " tokens leave no room for an answer within max_model_len ",
            context.max_model_len, "; shorten it, or pass ",
            fields.truncate_prompt_tokens ? "a smaller truncate_prompt_tokens"
                                          : "truncate_prompt_tokens"),
        field);
  }
  if (fields.max_tokens && context.max_model_len > 0 && *fields.max_tokens > room) {
    throw ApiError(400,
                   str(fields.max_tokens_field, ' ', *fields.max_tokens, " and the prompt's ",
                       prompt, " tokens exceed max_model_len ", context.max_model_len, "; pass ",
                       fields.max_tokens_field, " of at most ", room, " or shorten the prompt"),
                   fields.max_tokens_field);
  }
  SamplingParams params = fields.sampling;
  if (context.has_max_tokens) default_max_tokens = context.defaults.max_tokens;
  params.max_tokens = fields.max_tokens ? fields.max_tokens : default_max_tokens;
  if (!fields.max_tokens && params.max_tokens && context.max_model_len > 0) {
    params.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(*params.max_tokens, room));
  }
  params.logprobs = fields.logprobs;
  if (context.text != nullptr) {
    with_field("bad_words", [&] { add_bad_words(*context.text, fields.bad_words, params); });
  }
  check_ranges(params, fields.max_tokens_field);
  return params;
}

}  // namespace nvllm::launcher
