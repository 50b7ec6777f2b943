// Requests in JSON: their fields, under their names in vLLM, and TextInput, which turns their text
// into token ids. Used for lines of `generate` and for bodies of the server's API, so that a field
// has the same meaning in both.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/session/text_model.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Text options of a request.
struct TextRules {
  std::vector<std::string> stop;  // strings that end an answer and are not part of it
  bool skip_special_tokens = true;
};

// TextInput: turns the text of requests into token ids. Immutable; the model must outlive it.
class TextInput {
 public:
  TextInput(const TextModel& model, std::vector<std::string> stop)
      : model_(model), defaults_{.stop = std::move(stop)} {}

  const TextModel& model() const { return model_; }
  // For requests that do not specify them.
  const TextRules& defaults() const { return defaults_; }

  // A prompt to be continued.
  std::vector<std::int32_t> encode_prompt(std::string_view text) const;
  // A line's "messages" with its "tools" and "chat_template_kwargs". It takes the whole line
  // because keys must keep their order.
  std::vector<std::int32_t> encode_messages(std::string_view line) const;
  // The token sequences that spell a word at the start of a text and after a space, as in vLLM.
  std::vector<std::vector<std::int32_t>> encode_bad_word(std::string_view word) const;

 private:
  const TextModel& model_;
  TextRules defaults_;
};

// --- Fields ---

// A value as given, shortened for error messages.
std::string shown(const nlohmann::json& value);

// Each throws an Error that says what the value is and what it must be, without the field's name.
void read_value(const nlohmann::json& value, double& to);
void read_value(const nlohmann::json& value, bool& to);
void read_value(const nlohmann::json& value, std::uint64_t& to);
void read_value(const nlohmann::json& value, std::int32_t& to);
void read_value(const nlohmann::json& value, std::string& to);
void read_value(const nlohmann::json& value, std::vector<std::int32_t>& to);  // token ids
void read_value(const nlohmann::json& value, std::vector<std::vector<std::int32_t>>& to);
void read_value(const nlohmann::json& value,
                std::vector<std::pair<std::int32_t, float>>& to);  // {"7": -100}

template <typename Value>
void read_value(const nlohmann::json& value, std::optional<Value>& to) {
  Value inner{};
  read_value(value, inner);
  to = std::move(inner);
}

// A text, a list of texts, or null.
std::vector<std::string> read_texts(const nlohmann::json& value);

// Reads one field of SamplingParams; false: unknown name. null clears a default if the field is
// optional. Error messages start with the name.
bool read_sampling_field(std::string_view name, const nlohmann::json& value,
                         runtime::SamplingParams& params);
// All names.
const std::vector<std::string>& sampling_field_names();

// The same for the text fields that need no prompt: stop, skip_special_tokens and bad_words.
bool read_text_field(std::string_view name, const nlohmann::json& value, const TextInput& text,
                     TextRules& rules, runtime::SamplingParams& params);

}  // namespace nvllm::launcher
