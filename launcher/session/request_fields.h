// The fields of requests in JSON, under their names in vLLM. Lines of `generate` and bodies of the
// server's API are read with them, so that a field means the same in both.
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

// A value as it was written, shortened for an error.
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

// A text, or a list of some, or null.
std::vector<std::string> read_texts(const nlohmann::json& value);

// Reads one field of SamplingParams; false: there is none of this name. null takes a default away
// where a field may be absent. The message of an Error begins with the name.
bool read_sampling_field(std::string_view name, const nlohmann::json& value,
                         runtime::SamplingParams& params);
// The names that exist.
const std::vector<std::string>& sampling_field_names();

// The same for the fields about text that need no prompt: stop, skip_special_tokens and bad_words.
bool read_text_field(std::string_view name, const nlohmann::json& value, const TextInput& text,
                     TextRules& rules, runtime::SamplingParams& params);

}  // namespace nvllm::launcher
