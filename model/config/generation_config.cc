#include "model/config/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "model/checkpoint/checkpoint_file.h"
#include "model/config/config_keys.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();  // the values are used as floats
constexpr double kMinPositive = std::numeric_limits<float>::min();

std::optional<std::int32_t> optional_int32(const ConfigKeys& keys, const char* key,
                                           std::int64_t min) {
  const auto value = keys.optional_integer(key, {min, kMaxInt32});
  if (!value) return std::nullopt;
  return static_cast<std::int32_t>(*value);
}

// The end tokens that the vocabulary has: only these can be sampled.
std::vector<std::int32_t> ends_of(const std::vector<std::int64_t>& ids, const ModelConfig& config) {
  std::vector<std::int32_t> ends;
  for (const std::int64_t id : ids) {
    const auto end = static_cast<std::int32_t>(id);
    if (id < config.vocab_size && std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
  }
  return ends;
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
  if (!is_there(path)) return default_generation_config(config);
  return parse_generation_config(read_config_json(path), config, path);
}

}  // namespace nvllm::model
