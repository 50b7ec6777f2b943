#include "launcher/generate/request_line.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "launcher/cli/suggestions.h"
#include "launcher/generate/batch.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {

namespace {

using Json = nlohmann::json;
using runtime::SamplingParams;

// Text fields, and what to pass instead if there is no tokenizer.
struct TextField {
  std::string_view name;
  const char* ids;
};
constexpr TextField kTextFields[] = {
    {"prompt", "prompt_token_ids"},
    {"messages", "prompt_token_ids"},
    {"tools", "prompt_token_ids"},
    {"chat_template_kwargs", "prompt_token_ids"},
    {"stop", "stop_token_ids"},
    {"bad_words", "bad_words_token_ids"},
    {"skip_special_tokens", "only fields of token ids"},
};

[[noreturn]] void refuse_field(const std::string& name) {
  std::vector<std::string> known = sampling_field_names();
  known.insert(known.end(), {"id", "prompt_token_ids"});
  for (const TextField& field : kTextFields) known.emplace_back(field.name);
  const std::string nearest = nearest_name(name, known);
  if (nearest.empty()) fail(name, ": no such field");
  fail(name, ": no such field; did you mean '", nearest, "'?");
}

void read_field(const std::string& name, const Json& value, const TextInput* text,
                RequestLine& result) {
  runtime::Request& request = *result.request;
  if (name == "prompt_token_ids") {
    return with_context(name, [&] { read_value(value, request.prompt); });
  }
  const auto* const field = std::ranges::find(kTextFields, name, &TextField::name);
  if (field != std::end(kTextFields)) {
    if (text == nullptr) {
      fail(name, ": needs text, and the model has no tokenizer; pass ", field->ids);
    }
    // The fields of a prompt are read together, later.
    read_text_field(name, value, *text, result.text, request.sampling);
  } else if (!read_sampling_field(name, value, request.sampling)) {
    refuse_field(name);
  }
}

std::string read_request_id(const Json& object) {
  const auto id = object.find("id");
  if (id == object.end() || id->is_null()) return "";
  if (!id->is_string() && !id->is_number()) {
    fail("id: ", shown(*id), ": neither a string nor a number");
  }
  return id->dump();
}

// The ids of the prompt, which may be given in three ways.
void read_prompt(std::string_view line, const Json& object, const TextInput* text,
                 runtime::Request& request) {
  const char* given = nullptr;
  for (const char* const name : {"prompt_token_ids", "prompt", "messages"}) {
    if (!object.contains(name)) continue;
    if (given != nullptr) fail(given, " and ", name, ": pass one of them");
    given = name;
  }
  if (given == nullptr) {
    fail(text == nullptr ? "no prompt_token_ids" : "no prompt, messages or prompt_token_ids");
  }
  const std::string_view name = given;
  if (name == "prompt") {
    std::string prompt;
    with_context(name, [&] { read_value(object["prompt"], prompt); });
    request.prompt = text->encode_prompt(prompt);
  } else if (name == "messages") {
    request.prompt = text->encode_messages(line);
  }
  for (const char* const part : {"tools", "chat_template_kwargs"}) {
    if (object.contains(part) && name != "messages") fail(part, ": is for messages alone");
  }
  if (request.prompt.empty()) fail(name, ": ", shown(object[given]), ": an empty prompt");
}

void read_request(std::string_view line, const Json& object, const SamplingParams& defaults,
                  const TextInput* text, RequestLine& result) {
  result.request.emplace(runtime::Request{.prompt = {}, .sampling = defaults});
  for (const auto& item : object.items()) {
    if (item.key() != "id") read_field(item.key(), item.value(), text, result);
  }
  read_prompt(line, object, text, *result.request);
  runtime::check_sampling_params(result.request->sampling);
}

// Names in a line's objects are at most as many as tokens, as in logit_bias.
constexpr JsonLimits kLimits = {.max_keys = std::size_t{1} << 20, .position = "column"};

Json parse(std::string_view line) {
  try {
    return read_bounded_json(line, kLimits);
  } catch (const BadJson& error) {
    if (error.field().empty() || std::string_view(error.what()).starts_with("no valid")) throw;
    fail(shown(error.field()), ": ", error.what());
  }
}

std::string hash_of(std::string_view text) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(),
                                 XXH3_64bits(text.data(), text.size()), 16);
  return {digits.data(), end.ptr};
}

void read_line(std::string_view line, const SamplingParams& defaults, const TextInput* text,
               RequestLine& result) {
  result.batch = mentions_custom_id(line);
  result.hash = hash_of(line);
  const Json object = parse(line);
  result.hash = hash_of(json_text(object));
  if (!object.is_object()) {
    fail("holds ", object.type_name(), ", not an object such as {\"prompt_token_ids\": [1, 2]}");
  }
  result.batch = is_batch_line(object);
  if (result.batch) return read_batch_line(line, object, result);
  result.id = read_request_id(object);
  read_request(line, object, defaults, text, result);
}

}  // namespace

RequestLine parse_request_line(std::string_view line, const SamplingParams& defaults,
                               const TextInput* text) {
  RequestLine result;
  if (text != nullptr) result.text = text->defaults();
  // Catches not only Errors: a line that exhausts memory, for example, must not end the others.
  try {
    read_line(line, defaults, text, result);
  } catch (const std::exception& error) {
    result.request.reset();
    result.error = error.what();
  }
  return result;
}

}  // namespace nvllm::launcher
