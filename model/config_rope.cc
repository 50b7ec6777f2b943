#include "model/config_rope.h"

#include <array>
#include <string_view>
#include <utility>

namespace nvllm::model {
namespace {

using layers::RopeConfig;
using Type = RopeConfig::Type;

constexpr std::array<std::pair<std::string_view, Type>, 5> kTypes = {{
    {"default", Type::standard},
    {"linear", Type::linear},
    {"dynamic", Type::dynamic},
    {"yarn", Type::yarn},
    {"llama3", Type::llama3},
}};

// A factor stretches; more than this is a slip of the pen.
constexpr NumberLimits kFactor = {.least = 1, .most = 65536};
constexpr IntegerLimits kPositions = {.least = 1, .most = std::int64_t{1} << 31};

Type read_type(const ConfigKeys& rope) {
  const auto name = rope.optional_text("rope_type");
  if (!name) {
    if (rope.has("factor")) rope.refuse("rope_type", "missing, though there is a factor");
    return Type::standard;
  }
  for (const auto& [known, type] : kTypes) {
    if (known == *name) return type;
  }
  rope.refuse("rope_type", "not supported; known are default, linear, dynamic, yarn and llama3");
}

double read_factor(const ConfigKeys& rope, const RopeConfig& config) {
  if (config.type == Type::yarn && !rope.has("factor") && config.original_max_position_embeddings) {
    const double ratio = static_cast<double>(config.max_position_embeddings) /
                         static_cast<double>(*config.original_max_position_embeddings);
    if (ratio >= 1) return ratio;
  }
  return rope.number("factor", kFactor);
}

void read_yarn(const ConfigKeys& rope, RopeConfig& config) {
  constexpr NumberLimits kScale = {.least = 0, .most = 1e4};
  constexpr NumberLimits kBeta = {.least = 1e-3, .most = 1e6};
  config.attention_factor = rope.optional_number("attention_factor", {.least = 1e-3, .most = 1e4});
  config.mscale = rope.optional_number("mscale", kScale);
  config.mscale_all_dim = rope.optional_number("mscale_all_dim", kScale);
  config.beta_fast = rope.optional_number("beta_fast", kBeta).value_or(config.beta_fast);
  config.beta_slow = rope.optional_number("beta_slow", kBeta).value_or(config.beta_slow);
  config.truncate = rope.flag("truncate", config.truncate);
  if (config.beta_fast < config.beta_slow) {
    rope.refuse("beta_fast", "must not be below beta_slow, which is ", config.beta_slow);
  }
}

void read_llama3(const ConfigKeys& rope, RopeConfig& config) {
  constexpr NumberLimits kFrequencyFactor = {.least = 1e-3, .most = 1e6};
  config.low_freq_factor = rope.number("low_freq_factor", kFrequencyFactor);
  config.high_freq_factor = rope.number("high_freq_factor", kFrequencyFactor);
  if (config.high_freq_factor <= config.low_freq_factor) {
    rope.refuse("high_freq_factor", "must be above low_freq_factor, which is ",
                config.low_freq_factor);
  }
  if (!config.original_max_position_embeddings) {
    rope.refuse("original_max_position_embeddings", "missing; rope_type llama3 needs it");
  }
}

}  // namespace

layers::RopeConfig read_rope(const ConfigKeys& keys, std::int64_t max_position_embeddings) {
  const ConfigKeys rope = keys.rope();
  for (const char* part : {"full_attention", "sliding_attention"}) {
    if (rope.has(part)) rope.refuse(part, "RoPE by kind of layer is not supported");
  }
  RopeConfig config;
  config.type = read_type(rope);
  config.max_position_embeddings = max_position_embeddings;
  config.theta = rope.optional_number("rope_theta", {.least = 1, .most = 1e12}).value_or(1e4);
  if (config.type == Type::standard) return config;
  config.original_max_position_embeddings =
      rope.optional_integer("original_max_position_embeddings", kPositions);
  config.factor = read_factor(rope, config);
  if (config.type == Type::yarn) read_yarn(rope, config);
  if (config.type == Type::llama3) read_llama3(rope, config);
  return config;
}

}  // namespace nvllm::model
