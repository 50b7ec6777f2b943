// Translates a GGUF file's metadata to Hugging Face's config.json, including Llama 3's RoPE
// scaling.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/checkpoint/gguf.h"

namespace nvllm::model {

// `rope_factors`: the values of rope_freqs.weight; empty: none. Throws an Error that names any
// metadata that config.json cannot express or this program does not support.
std::string gguf_config_json(const GgufHeader& header, std::span<const float> rope_factors);

// The tensor with the factors of Llama 3's RoPE scaling, which is part of the configuration.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// Llama 3's RoPE scaling as config.json describes it. Frequencies whose wavelength is above
// original / low_freq_factor positions are divided by the factor, those below original /
// high_freq_factor are kept, and those between are blended.
struct Llama3Scaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

// The divisor of a frequency, given its wavelength.
double llama3_divisor(const Llama3Scaling& scaling, double wavelength);

// Finds the scaling with these divisors, one for each frequency theta^(-2i / head_dim), within the
// precision of float32. GGUF stores the divisors instead of the scaling. nullopt: there is none.
std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta);

}  // namespace nvllm::model
