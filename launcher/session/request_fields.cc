#include "launcher/session/request_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {

// --- TextInput ---

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
  return as_request_ids(model_.encode_conversation(model_.render_conversation(std::move(request))));
}

std::vector<std::vector<std::int32_t>> TextInput::encode_bad_word(std::string_view word) const {
  const auto encode = [&](const std::string& text) {
    return as_request_ids(model_.tokenizer().encode(text, false));
  };
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  std::vector<std::vector<std::int32_t>> spellings = {encode(std::string(word))};
  if (spellings[0].empty()) fail("\"\": an empty word");
  // If the space is a token of its own, the first spelling is sufficient.
  std::vector<std::int32_t> spaced = encode(str(" ", word));
  if (spaced.size() == spellings[0].size() && spaced[0] != spellings[0][0]) {
    spellings.push_back(std::move(spaced));
  }
  return spellings;
}

// --- Fields ---

namespace {

using Json = nlohmann::json;
using runtime::SamplingParams;

void read_id(const Json& value, std::int32_t& to) {
  if (!value.is_number_integer()) fail(shown(value), ": no token id");
  read_value(value, to);
  if (to < 0) fail(to, ": no token id; they begin at 0");
}

// Clears optional values; other fields must not be null.
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

// The start of the value, so that a value of megabytes is not formatted to be truncated. room:
// remaining bytes of text.
Json beginning_of(const Json& value, std::size_t& room) {
  const auto spend = [&](std::size_t bytes) { room -= std::min(room, bytes); };
  if (value.is_string()) {
    const std::string text = value.get_ref<const std::string&>().substr(0, room);
    spend(text.size());
    return text;
  }
  spend(1);
  if (!value.is_structured()) return value;
  Json part = value.is_array() ? Json::array() : Json::object();
  for (auto item = value.begin(); item != value.end() && room > 0; ++item) {
    if (value.is_array()) {
      part.push_back(beginning_of(*item, room));
    } else {
      const std::string key = item.key().substr(0, room);
      spend(key.size());
      part[key] = beginning_of(*item, room);
    }
  }
  return part;
}

// null allows all tokens, and an empty list would allow none.
void store_allowed_token_ids(const Json& value, SamplingParams& params) {
  if (value.is_null()) return read_null(params.allowed_token_ids);
  read_value(value, params.allowed_token_ids);
  if (params.allowed_token_ids.empty()) fail("[]: allows no token; leave it out");
}

struct Field {
  std::string_view name;
  void (*store)(const Json& value, SamplingParams& params);
};

template <auto Member>
void store(const Json& value, SamplingParams& params) {
  if (value.is_null()) return read_null(params.*Member);
  read_value(value, params.*Member);
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
    {"allowed_token_ids", store_allowed_token_ids},
    {"bad_words_token_ids", store<&SamplingParams::bad_words>},
    {"logprobs", store<&SamplingParams::logprobs>},
    {"prompt_logprobs", store<&SamplingParams::prompt_logprobs>},
};

}  // namespace

std::string shown(const Json& value) {
  constexpr std::size_t kMaxShown = 40;
  std::size_t room = kMaxShown + 1;
  const std::string text = json_ascii(beginning_of(value, room));
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

void read_value(const Json& value, double& to) {
  if (!value.is_number()) fail(shown(value), ": not a number");
  to = value.get<double>();
}

void read_value(const Json& value, bool& to) {
  if (!value.is_boolean()) fail(shown(value), ": neither true nor false");
  to = value.get<bool>();
}

void read_value(const Json& value, std::uint64_t& to) {
  if (!value.is_number_unsigned()) fail(shown(value), ": not a whole number from 0 on");
  to = value.get<std::uint64_t>();
}

void read_value(const Json& value, std::int32_t& to) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (value.is_number_float()) {  // 16.0, which clients send that have no other numbers
    const double number = value.get<double>();
    if (std::abs(number) > kMax || number != std::trunc(number)) {
      fail(shown(value), ": not a whole number");
    }
    to = static_cast<std::int32_t>(number);
    return;
  }
  if (!value.is_number_integer()) fail(shown(value), ": not a whole number");
  if (value.is_number_unsigned() ? value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax)
                                 : value.get<std::int64_t>() < -kMax) {
    fail(shown(value), ": out of range; at most ", kMax, " is allowed");
  }
  to = value.get<std::int32_t>();
}

void read_value(const Json& value, std::vector<std::int32_t>& to) {
  if (!value.is_array()) fail(shown(value), ": not a list of token ids");
  to.assign(value.size(), 0);
  for (std::size_t i = 0; i < to.size(); ++i) read_id(value[i], to[i]);
}

void read_value(const Json& value, std::vector<std::vector<std::int32_t>>& to) {
  if (!value.is_array()) fail(shown(value), ": not a list of lists of token ids");
  to.assign(value.size(), {});
  for (std::size_t i = 0; i < to.size(); ++i) read_value(value[i], to[i]);
}

void read_value(const Json& value, std::vector<std::pair<std::int32_t, float>>& to) {
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
    read_value(item.value(), bias);
    to.emplace_back(id, static_cast<float>(bias));
  }
}

void read_value(const Json& value, std::string& to) {
  if (!value.is_string()) fail(shown(value), ": no text");
  to = value.get<std::string>();
}

// A text, or a list of texts.
std::vector<std::string> read_texts(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  if (value.is_string()) {
    texts.push_back(value.get<std::string>());
  } else {
    if (!value.is_array()) fail(shown(value), ": neither a text nor a list of texts");
    for (const Json& item : value) read_value(item, texts.emplace_back());
  }
  for (const std::string& text : texts) {
    if (text.empty()) fail(shown(value), ": an empty text; leave it out");
  }
  return texts;
}

bool read_sampling_field(std::string_view name, const Json& value, SamplingParams& params) {
  const auto* const field = std::ranges::find(kFields, name, &Field::name);
  if (field == std::end(kFields)) return false;
  with_context(name, [&] { field->store(value, params); });
  return true;
}

const std::vector<std::string>& sampling_field_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Field& field : kFields) result.emplace_back(field.name);
    return result;
  }();
  return names;
}

bool read_text_field(std::string_view name, const Json& value, const TextInput& text,
                     TextRules& rules, SamplingParams& params) {
  return with_context(name, [&] {
    if (name == "stop") {
      rules.stop = read_texts(value);
    } else if (name == "skip_special_tokens") {
      read_value(value, rules.skip_special_tokens);
    } else if (name == "bad_words") {
      for (const std::string& word : read_texts(value)) {
        for (auto& spelling : text.encode_bad_word(word)) {
          params.bad_words.push_back(std::move(spelling));
        }
      }
    } else {
      return false;
    }
    return true;
  });
}

}  // namespace nvllm::launcher
