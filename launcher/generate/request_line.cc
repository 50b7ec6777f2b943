#include "launcher/generate/request_line.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/cli/nearest_name.h"

namespace nvllm::launcher {

namespace {

using Json = nlohmann::json;
using runtime::SamplingParams;

// A value as it stands in the line, shortened for an error.
std::string shown(const Json& value) {
  constexpr std::size_t kMaxShown = 40;
  const std::string text = json_ascii(value);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

void read(const Json& value, double& to) {
  if (!value.is_number()) fail(shown(value), ": not a number");
  to = value.get<double>();
}

void read(const Json& value, bool& to) {
  if (!value.is_boolean()) fail(shown(value), ": neither true nor false");
  to = value.get<bool>();
}

void read(const Json& value, std::uint64_t& to) {
  if (!value.is_number_unsigned()) fail(shown(value), ": not a whole number from 0 on");
  to = value.get<std::uint64_t>();
}

void read(const Json& value, std::int32_t& to) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (!value.is_number_integer()) fail(shown(value), ": not a whole number");
  if (value.is_number_unsigned() ? value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax)
                                 : value.get<std::int64_t>() < -kMax) {
    fail(shown(value), ": out of range; at most ", kMax, " is allowed");
  }
  to = value.get<std::int32_t>();
}

void read_id(const Json& value, std::int32_t& to) {
  if (!value.is_number_integer()) fail(shown(value), ": no token id");
  read(value, to);
  if (to < 0) fail(to, ": no token id; they begin at 0");
}

void read(const Json& value, std::vector<std::int32_t>& to) {
  if (!value.is_array()) fail(shown(value), ": not a list of token ids");
  to.assign(value.size(), 0);
  for (std::size_t i = 0; i < to.size(); ++i) read_id(value[i], to[i]);
}

void read(const Json& value, std::vector<std::vector<std::int32_t>>& to) {
  if (!value.is_array()) fail(shown(value), ": not a list of lists of token ids");
  to.assign(value.size(), {});
  for (std::size_t i = 0; i < to.size(); ++i) read(value[i], to[i]);
}

void read(const Json& value, std::vector<std::pair<std::int32_t, float>>& to) {
  if (!value.is_object()) fail(shown(value), ": not an object such as {\"7\": -100}");
  to.clear();
  for (const auto& item : value.items()) {
    const std::string& key = item.key();
    std::int32_t id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size() || id < 0) {
      fail(shown(key), ": no token id");
    }
    double bias = 0;
    read(item.value(), bias);
    to.emplace_back(id, static_cast<float>(bias));
  }
}

template <typename Value>
void read(const Json& value, std::optional<Value>& to) {
  Value inner{};
  read(value, inner);
  to = inner;
}

// Clears what may be absent; other fields cannot be null.
template <typename Value>
void read_null(std::optional<Value>& to) {
  to.reset();
}
template <typename Value>
void read_null(std::vector<Value>& to) {
  to.clear();
}
template <typename Value>
void read_null(Value&) {
  fail("null; leave it out");
}

struct Field {
  const char* name;
  void (*store)(const Json& value, SamplingParams& params);
};

template <auto Member>
void store(const Json& value, SamplingParams& params) {
  if (value.is_null()) return read_null(params.*Member);
  read(value, params.*Member);
}

constexpr Field kFields[] = {
    {"n", store<&SamplingParams::n>},
    {"temperature", store<&SamplingParams::temperature>},
    {"top_p", store<&SamplingParams::top_p>},
    {"top_k", store<&SamplingParams::top_k>},
    {"min_p", store<&SamplingParams::min_p>},
    {"repetition_penalty", store<&SamplingParams::repetition_penalty>},
    {"presence_penalty", store<&SamplingParams::presence_penalty>},
    {"frequency_penalty", store<&SamplingParams::frequency_penalty>},
    {"seed", store<&SamplingParams::seed>},
    {"max_tokens", store<&SamplingParams::max_tokens>},
    {"min_tokens", store<&SamplingParams::min_tokens>},
    {"ignore_eos", store<&SamplingParams::ignore_eos>},
    {"stop_token_ids", store<&SamplingParams::stop_token_ids>},
    {"logit_bias", store<&SamplingParams::logit_bias>},
    {"allowed_token_ids", store<&SamplingParams::allowed_token_ids>},
    {"bad_words_token_ids", store<&SamplingParams::bad_words>},
    {"logprobs", store<&SamplingParams::logprobs>},
    {"prompt_logprobs", store<&SamplingParams::prompt_logprobs>},
};

// Fields that hold text, and what to pass instead where there is no tokenizer.
struct TextField {
  const char* name;
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
  std::vector<std::string> known = {"id", "prompt_token_ids"};
  for (const TextField& field : kTextFields) known.emplace_back(field.name);
  for (const Field& field : kFields) known.emplace_back(field.name);
  const std::string nearest = nearest_name(name, known);
  if (nearest.empty()) fail("no such field");
  fail("no such field; did you mean '", nearest, "'?");
}

void read(const Json& value, std::string& to) {
  if (!value.is_string()) fail(shown(value), ": no text");
  to = value.get<std::string>();
}

// A text, or a list of some.
std::vector<std::string> read_texts(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) fail(shown(value), ": neither a text nor a list of texts");
  for (const Json& item : value) read(item, texts.emplace_back());
  return texts;
}

// Whether it is one; those of a prompt are read together, later.
bool read_text_field(const std::string& name, const Json& value, const TextInput* text,
                     RequestLine& result) {
  const auto* const field = std::find_if(std::begin(kTextFields), std::end(kTextFields),
                                         [&](const TextField& each) { return name == each.name; });
  if (field == std::end(kTextFields)) return false;
  if (text == nullptr) fail("needs text, and the model has no tokenizer; pass ", field->ids);
  if (name == "stop") {
    result.text.stop = read_texts(value);
  } else if (name == "skip_special_tokens") {
    read(value, result.text.skip_special_tokens);
  } else if (name == "bad_words") {
    for (const std::string& word : read_texts(value)) {
      for (auto& spelling : text->encode_bad_word(word)) {
        result.request->sampling.bad_words.push_back(std::move(spelling));
      }
    }
  }
  return true;
}

void read_field(const std::string& name, const Json& value, const TextInput* text,
                RequestLine& result) {
  if (read_text_field(name, value, text, result)) return;
  runtime::Request& request = *result.request;
  if (name == "prompt_token_ids") return read(value, request.prompt);
  const auto* const field = std::find_if(std::begin(kFields), std::end(kFields),
                                         [&](const Field& each) { return name == each.name; });
  if (field == std::end(kFields)) refuse_field(name);
  field->store(value, request.sampling);
}

std::string read_request_id(const Json& object) {
  const auto id = object.find("id");
  if (id == object.end() || id->is_null()) return "";
  if (!id->is_string() && !id->is_number()) {
    fail("id: ", shown(*id), ": neither a string nor a number");
  }
  return id->dump();
}

// The ids of the prompt, in whichever of the three ways it is given.
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
    with_context(name, [&] { read(object["prompt"], prompt); });
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
    if (item.key() == "id") continue;
    with_context(item.key(), [&] { read_field(item.key(), item.value(), text, result); });
  }
  read_prompt(line, object, text, *result.request);
  runtime::check_sampling_params(result.request->sampling);
}

Json parse(std::string_view line) {
  try {
    return parse_json(line);
  } catch (const Json::parse_error& error) {
    fail("no valid JSON at column ", error.byte);
  }
}

}  // namespace

RequestLine parse_request_line(std::string_view line, const SamplingParams& defaults,
                               const TextInput* text) {
  RequestLine result;
  if (text != nullptr) result.text = text->defaults();
  try {
    const Json object = parse(line);
    if (!object.is_object()) {
      fail("holds ", object.type_name(), ", not an object such as {\"prompt_token_ids\": [1, 2]}");
    }
    result.id = read_request_id(object);
    read_request(line, object, defaults, text, result);
  } catch (const Error& error) {
    result.request.reset();
    result.error = error.what();
  }
  return result;
}

namespace {

std::vector<std::int32_t> as_request_ids(const std::vector<tokenizer::TokenId>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

std::vector<std::int32_t> TextInput::encode_prompt(std::string_view text) const {
  return as_request_ids(model_.encode_prompt(text));
}

std::vector<std::int32_t> TextInput::encode_messages(std::string_view line) const {
  const jinja::Value value = jinja::from_json(line, "the line");
  const jinja::Dict& object = *value.dict();
  tokenizer::ChatTemplate::Request request;
  request.messages = *object.get("messages");
  if (const jinja::Value* tools = object.get("tools")) request.tools = *tools;
  request.options.set("add_generation_prompt", true);
  const jinja::Value* options = object.get("chat_template_kwargs");
  if (options != nullptr && !options->none()) {
    if (options->dict() == nullptr) {
      fail("chat_template_kwargs: a ", options->type_name(), ", not an object");
    }
    for (const auto& [name, option] : options->dict()->items()) request.options.set(name, option);
  }
  return as_request_ids(model_.encode_conversation(model_.chat_template().render(request)));
}

std::vector<std::vector<std::int32_t>> TextInput::encode_bad_word(std::string_view word) const {
  const auto encode = [&](const std::string& text) {
    return as_request_ids(model_.tokenizer().encode(text, false));
  };
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  std::vector<std::vector<std::int32_t>> spellings = {encode(std::string(word))};
  if (spellings[0].empty()) fail("\"\": an empty word");
  // Where the space is a token of its own, the first spelling says it all.
  std::vector<std::int32_t> spaced = encode(str(" ", word));
  if (spaced.size() == spellings[0].size() && spaced[0] != spellings[0][0]) {
    spellings.push_back(std::move(spaced));
  }
  return spellings;
}

}  // namespace nvllm::launcher
