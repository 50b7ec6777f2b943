// The JSON body of a request and its fields: those shared by all endpoints that generate, under
// vLLM's names, and how an endpoint reads its body with this table and a table of its own. A field
// is either supported or rejected by name. null means "not given", as clients send it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/session/request_fields.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// --- The body ---

// Parses an object. Throws an ApiError with the field where the text is invalid (see
// bounded_json.h).
nlohmann::json parse_body(std::string_view body);

// A field of strings that are searched for in every answer: stop, bad_words.
struct StringList {
  static constexpr std::size_t kMaxCount = 64;
  static constexpr std::size_t kMaxBytes = 4096;
  std::vector<std::string> items = {};
};

void read_value(const nlohmann::json& value, StringList& to);  // a string, or a list of some

// Converts an Error of the function to an ApiError of status 400 about this field.
template <typename Function>
decltype(auto) with_field(std::string_view name, Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, str(name, ": ", error.what()), std::string(name));
  }
}

// --- Fields of all endpoints that generate ---

struct GenerationFields {
  runtime::SamplingParams sampling = {};  // except max_tokens, logprobs and bad_words
  std::string model = "";
  std::string request_id = "";  // empty: from the request's header
  std::optional<std::int32_t> max_tokens = std::nullopt;
  std::string max_tokens_field = "max_tokens";  // as the request names it
  // Text.
  StringList stop = {};
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  StringList bad_words = {};
  // Prompt.
  std::optional<std::int32_t> truncate_prompt_tokens = std::nullopt;  // -1: to what fits
  std::optional<bool> add_special_tokens = std::nullopt;
  // Response.
  std::optional<std::int32_t> logprobs = std::nullopt;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  // Streaming.
  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  std::int32_t stream_interval = 1;  // tokens per event, except the first
};

template <typename Fields>
struct Field {
  const char* name;
  void (*store)(const nlohmann::json& value, Fields& fields);
};

// A field of the API that this server does not support.
struct RefusedField {
  const char* name;
  const char* why;
  // JSON of the value that asks for nothing, which some clients always send; "": there is none.
  const char* neutral = "";
};

template <auto Member, typename Fields>
void store_value(const nlohmann::json& value, Fields& fields) {
  read_value(value, fields.*Member);
}
// The endpoint reads it itself.
template <typename Fields>
void store_nothing(const nlohmann::json& /*value*/, Fields& /*fields*/) {}

// Throws an Error if this is more than the engine reports.
void check_logprobs_count(std::int32_t count);

// Stores the value if it is a field of GenerationFields; throws an ApiError if the field is
// rejected by all endpoints.
bool read_generation_field(const std::string& name, const nlohmann::json& value,
                           GenerationFields& fields);
// The supported names.
std::vector<std::string> generation_field_names();

// Throws an ApiError that suggests the most similar of the known names.
[[noreturn]] void refuse_unknown_field(const std::string& name, std::vector<std::string> known);
// Throws an ApiError if the field is one of these and asks for something.
void check_refused(const std::string& name, const nlohmann::json& value,
                   std::span<const RefusedField> refused);
// Throws an ApiError if the server has no model of this name.
void check_model(const ApiContext& context, const std::string& model);
// Checks combinations of fields. Called by read_fields().
void check_fields(const ApiContext& context, const GenerationFields& fields);

// Fields: GenerationFields, or derived from it. `own` takes precedence; `refused` is this
// endpoint's.
template <typename Fields>
Fields read_fields(const ApiContext& context, const nlohmann::json& body,
                   std::span<const Field<Fields>> own, std::span<const RefusedField> refused) {
  Fields fields;
  fields.sampling = context.defaults;
  fields.logprobs = context.defaults.logprobs;
  fields.stop.items = context.stop;
  fields.return_tokens_as_token_ids = context.return_tokens_as_token_ids;
  for (const auto& [name, value] : body.items()) {
    const auto field = std::ranges::find(own, std::string_view(name), &Field<Fields>::name);
    if (field != own.end()) {
      if (!value.is_null()) with_field(name, [&, &v = value] { field->store(v, fields); });
      continue;
    }
    if (!value.is_null()) check_refused(name, value, refused);
    if (read_generation_field(name, value, fields)) continue;
    if (std::ranges::find(refused, std::string_view(name), &RefusedField::name) != refused.end()) {
      continue;  // it asks for nothing
    }
    std::vector<std::string> known;
    for (const Field<Fields>& each : own) known.emplace_back(each.name);
    refuse_unknown_field(name, std::move(known));
  }
  check_fields(context, fields);
  return fields;
}

// --- Deriving engine requests from the fields ---

// Encodes a text; hopelessly long ones are rejected before that. `field`: named in errors.
std::vector<std::int32_t> encode_text(const ApiContext& context, std::string_view field,
                                      std::string_view text, bool add_special_tokens);
// The same for the text of a conversation, whose marked parts yield no special tokens.
std::vector<std::int32_t> encode_text(const ApiContext& context, std::string_view field,
                                      const tokenizer::MarkedText& text, bool add_special_tokens);

// Truncates a prompt according to truncate_prompt_tokens.
void truncate_prompt(const ApiContext& context, const GenerationFields& fields,
                     std::vector<std::int32_t>& prompt);

// The parameters for a prompt of this length. default_max_tokens: nullopt: up to the maximum
// length. Throws an ApiError for values out of range, or if prompt and answer do not fit in the
// model's context; prompt_field: the field of the prompt.
runtime::SamplingParams sampling_of(const ApiContext& context, const GenerationFields& fields,
                                    std::size_t prompt_tokens, std::string_view prompt_field,
                                    std::optional<std::int32_t> default_max_tokens);

// --- Names of the fields that endpoints accept: /openapi.json must have the same ---

std::vector<std::string> completion_field_names();
std::vector<std::string> chat_field_names();
std::vector<std::string> message_field_names();
std::vector<std::string> response_field_names();

// An endpoint's own fields, and those of generation_field_names() that it does not reject.
template <typename Fields>
std::vector<std::string> accepted_names(std::span<const Field<Fields>> own,
                                        std::span<const RefusedField> refused) {
  std::vector<std::string> names;
  for (const Field<Fields>& field : own) names.emplace_back(field.name);
  for (std::string& name : generation_field_names()) {
    const bool is_own = std::ranges::find(names, name) != names.end();
    const bool is_refused =
        std::ranges::find(refused, std::string_view(name), &RefusedField::name) != refused.end();
    if (!is_own && !is_refused) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace nvllm::launcher
