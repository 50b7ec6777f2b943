// The JSON fields of requests, under their names in vLLM. Used for lines of `generate` and for
// bodies of the server's API, so that a field has the same meaning in both.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/session/text_input.h"
#include "runtime/request.h"

namespace nvllm::launcher {

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
