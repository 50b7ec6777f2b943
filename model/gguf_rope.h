// Llama 3's RoPE scaling, found again from the factors that GGUF has of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace nvllm::model {

// As in a config.json: frequencies whose wavelength is above original / low_freq_factor positions are
// divided by the factor, those below original / high_freq_factor are kept, and those between are blended.
struct Llama3Scaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

// What frequency i, theta^(-2i / head_dim), is divided by.
double llama3_divisor(const Llama3Scaling& scaling, double wavelength);

// A scaling whose divisors are these, one for every frequency, to float32's precision; nullopt: there is
// none, the factors are of another kind.
std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta);

}  // namespace nvllm::model
