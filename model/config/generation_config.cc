#include "model/config/generation_config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/bounded_json.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/config/config_keys.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();  // the values are used as floats
constexpr double kMinPositive = std::numeric_limits<float>::min();
constexpr std::uint64_t kMaxTokenizerConfigBytes = std::uint64_t{64} << 20;

using Json = nlohmann::json;

std::optional<std::int32_t> optional_int32(const ConfigKeys& keys, const char* key,
                                           std::int64_t min) {
  const auto value = keys.optional_integer(key, {min, kMaxInt32});
  if (!value) return std::nullopt;
  return static_cast<std::int32_t>(*value);
}

// Adds an end token, once, if the vocabulary has it: only those can be sampled.
void add_end(std::int64_t id, const ModelConfig& config, std::vector<std::int32_t>& ends) {
  const auto end = static_cast<std::int32_t>(id);
  if (id < config.vocab_size && std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
}

std::vector<std::int32_t> ends_of(const std::vector<std::int64_t>& ids, const ModelConfig& config) {
  std::vector<std::int32_t> ends;
  for (const std::int64_t id : ids) add_end(id, config, ends);
  return ends;
}

// The text of a token, which is a string or an object with its content; empty: there is none.
std::string token_text(const Json& token) {
  const auto content = token.find("content");
  const Json& text = content == token.end() ? token : *content;
  return text.is_string() ? text.get<std::string>() : "";
}

// The id of the tokenizer's "eos_token". Models for chats may end their turns with it although
// config.json names only the token that ends a document. nullopt: the folder names none.
std::optional<std::int64_t> read_tokenizer_eos(const std::filesystem::path& folder) {
  const std::string path = (folder / "tokenizer_config.json").string();
  if (!is_there(path)) return std::nullopt;
  const Json config = parse_nested_json(read_text(path, kMaxTokenizerConfigBytes), path);
  const auto eos = config.find("eos_token"), tokens = config.find("added_tokens_decoder");
  if (eos == config.end() || tokens == config.end() || !tokens->is_object()) return std::nullopt;
  const std::string text = token_text(*eos);
  if (text.empty()) return std::nullopt;
  for (const auto& [key, token] : tokens->items()) {
    if (token_text(token) != text) continue;
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error == std::errc() && end == key.data() + key.size() && id >= 0) return id;
  }
  return std::nullopt;
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, const ModelConfig& config,
                                         const std::string& where) {
  const ConfigKeys keys = ConfigKeys::parse(text, "", where);
  GenerationConfig generation = default_generation_config(config);
  generation.temperature = keys.optional_number("temperature", {0, kMaxFloat});
  generation.top_p = keys.optional_number("top_p", {kMinPositive, 1});
  generation.top_k = optional_int32(keys, "top_k", -1);
  generation.min_p = keys.optional_number("min_p", {0, 1});
  generation.repetition_penalty =
      keys.optional_number("repetition_penalty", {kMinPositive, kMaxFloat});
  generation.max_new_tokens = optional_int32(keys, "max_new_tokens", 1);
  if (!keys.flag("do_sample", true)) generation.temperature = 0;
  const std::vector<std::int64_t> ends = keys.integers("eos_token_id", {0, kMaxInt32});
  if (!ends.empty()) generation.eos_token_ids = ends_of(ends, config);
  return generation;
}

GenerationConfig default_generation_config(const ModelConfig& config) {
  GenerationConfig generation;
  generation.eos_token_ids = ends_of(config.eos_token_ids, config);
  return generation;
}

GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& config) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  GenerationConfig generation = is_there(path)
                                    ? parse_generation_config(read_config_json(path), config, path)
                                    : default_generation_config(config);
  if (const auto eos = read_tokenizer_eos(folder)) add_end(*eos, config, generation.eos_token_ids);
  return generation;
}

}  // namespace nvllm::model
