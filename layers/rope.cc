#include "layers/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace nvllm::layers {
namespace {

using Frequencies = std::vector<double>;

// theta^(-2i / head_dim)
Frequencies geometric(double theta, std::int64_t head_dim) {
  Frequencies inverse(head_dim / 2);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return inverse;
}

double original_positions(const RopeConfig& config) {
  return static_cast<double>(
      config.original_max_position_embeddings.value_or(config.max_position_embeddings));
}

void require_positive(double value, const char* name) {
  if (!(value > 0)) fail("rope: ", name, " is ", value, "; it must be positive");
}

void check(const RopeConfig& config, std::int64_t head_dim) {
  using Type = RopeConfig::Type;
  if (head_dim < 2 || head_dim % 2 != 0)
    fail("rope: head_dim is ", head_dim, "; it must be even and at least 2");
  require_positive(config.theta, "theta");
  if (config.type == Type::standard) return;
  require_positive(config.factor, "factor");
  if (config.type == Type::proportional && !(config.rotated >= 0 && config.rotated <= 1))
    fail("rope: rotated is ", config.rotated, "; it must be 0 to 1");
  if (config.type == Type::dynamic && head_dim == 2)
    fail("rope: head_dim is 2; dynamic scaling needs at least 4");
  if (config.type == Type::yarn || config.type == Type::llama3)
    require_positive(original_positions(config), "original_max_position_embeddings");
  if (config.type == Type::yarn) {
    require_positive(config.beta_fast, "beta_fast");
    require_positive(config.beta_slow, "beta_slow");
    if (config.theta == 1) fail("rope: theta is 1; yarn needs another one");
  }
  if (config.type == Type::llama3 && !(config.low_freq_factor < config.high_freq_factor)) {
    fail("rope: low_freq_factor is ", config.low_freq_factor,
         "; it must be below high_freq_factor, ", config.high_freq_factor);
  }
}

// The base grows so that the longest wavelength spans the longer context.
Frequencies dynamic(const RopeConfig& config, std::int64_t head_dim) {
  const double dim = static_cast<double>(head_dim);
  const double growth = config.factor * config.factor - (config.factor - 1);
  require_positive(growth, "factor^2 - factor + 1");
  return geometric(config.theta * std::pow(growth, dim / (dim - 2)), head_dim);
}

// Frequencies with fewer than low_freq_factor turns in the original context are scaled, those with
// more than high_freq_factor turns are kept, with linear interpolation between the two.
Frequencies llama3(const RopeConfig& config, std::int64_t head_dim) {
  Frequencies inverse = geometric(config.theta, head_dim);
  for (double& frequency : inverse) {
    const double turns = original_positions(config) * frequency / (2 * std::numbers::pi);
    const double keep = std::clamp(
        (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor), 0.0,
        1.0);
    frequency *= keep + (1 - keep) / config.factor;
  }
  return inverse;
}

// Interpolates like llama3, but between frequency indices: from the one with beta_fast turns to the
// one with beta_slow turns.
Frequencies yarn(const RopeConfig& config, std::int64_t head_dim) {
  const double dim = static_cast<double>(head_dim);
  const auto index_of = [&](double turns) {
    return dim * std::log(original_positions(config) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = index_of(config.beta_fast);
  double high = index_of(config.beta_slow);
  if (config.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;

  Frequencies inverse = geometric(config.theta, head_dim);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const double stretch = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] *= 1 - stretch + stretch / config.factor;
  }
  return inverse;
}

double yarn_attention_scaling(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  const auto scaling = [&](double mscale) {
    return config.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(config.factor) + 1;
  };
  const double mscale = config.mscale.value_or(0);
  const double mscale_all_dim = config.mscale_all_dim.value_or(0);
  // Zero means absent, as in Hugging Face's implementation.
  if (mscale != 0 && mscale_all_dim != 0) return scaling(mscale) / scaling(mscale_all_dim);
  return scaling(1);
}

Frequencies frequencies(const RopeConfig& config, std::int64_t head_dim) {
  switch (config.type) {
    case RopeConfig::Type::standard: break;
    case RopeConfig::Type::linear: {
      Frequencies inverse = geometric(config.theta, head_dim);
      for (double& frequency : inverse) frequency /= config.factor;
      return inverse;
    }
    case RopeConfig::Type::dynamic: return dynamic(config, head_dim);
    case RopeConfig::Type::yarn: return yarn(config, head_dim);
    case RopeConfig::Type::llama3: return llama3(config, head_dim);
    case RopeConfig::Type::proportional: {
      Frequencies inverse = geometric(config.theta, head_dim);
      const auto rotated =
          static_cast<std::ptrdiff_t>(config.rotated * static_cast<double>(head_dim) / 2);
      std::fill(inverse.begin() + rotated, inverse.end(), 0.0);
      return inverse;
    }
  }
  return geometric(config.theta, head_dim);
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t head_dim) {
  check(config, head_dim);
  const Frequencies inverse = frequencies(config, head_dim);
  RopeFrequencies rope;
  rope.inverse.assign(inverse.begin(), inverse.end());
  if (config.type == RopeConfig::Type::yarn)
    rope.attention_scaling = static_cast<float>(yarn_attention_scaling(config));
  return rope;
}

// A cosine and a sine take 40 ns, and a model may have 131072 positions of 64 each. So they are
// computed for every kStride-th position and for the first kStride ones; other positions follow
// from the angle sum identities. In double, with exact angles, the error is about 1e-14.
std::vector<float> rope_table(const RopeConfig& config, std::int64_t head_dim,
                              std::int64_t positions) {
  constexpr std::int64_t kStride = 256;
  const RopeFrequencies rope = rope_frequencies(config, head_dim);
  const std::int64_t half = head_dim / 2;
  std::vector<double> near(kStride * head_dim);  // [kStride][head_dim]: cosines, then sines
  std::vector<double> far(head_dim);
  const auto exact = [&](double* row, std::int64_t position, double scaling) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * rope.inverse[i];
      row[i] = std::cos(angle) * scaling;
      row[half + i] = std::sin(angle) * scaling;
    }
  };
  for (std::int64_t p = 0; p < std::min(kStride, positions); ++p) {
    exact(&near[p * head_dim], p, 1);
  }
  std::vector<float> table(positions * head_dim);
  for (std::int64_t position = 0; position < positions; ++position) {
    if (position % kStride == 0) exact(far.data(), position, rope.attention_scaling);
    const double* one = &near[position % kStride * head_dim];
    float* row = &table[position * head_dim];
    for (std::int64_t i = 0; i < half; ++i) {
      row[i] = static_cast<float>(far[i] * one[i] - far[half + i] * one[half + i]);
      row[half + i] = static_cast<float>(far[half + i] * one[i] + far[i] * one[half + i]);
    }
  }
  return table;
}

RopeTable::RopeTable(const RopeConfig& config, std::int64_t head_dim, std::int64_t positions,
                     Backend& backend) {
  const std::vector<float> values = rope_table(config, head_dim, positions);
  memory_ = backend.allocate(MemoryKind::device, values.size() * sizeof(float), "rope table");
  cos_sin_ = TensorView(memory_.data(), DType::f32, {positions, head_dim});
  const auto stream = backend.create_stream();
  backend.copy(memory_.data(), values.data(), memory_.bytes(), *stream);
  stream->synchronize();
}

}  // namespace nvllm::layers
