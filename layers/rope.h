// RoPE: cosines and sines by position for every context extension method, and their table in device
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::layers {

struct RopeConfig {
  enum class Type : std::uint8_t { standard, linear, dynamic, yarn, llama3, proportional };
  Type type = Type::standard;
  double theta = 10000.0;
  std::int64_t max_position_embeddings = 0;  // the model's

  double factor = 1.0;  // linear, dynamic, yarn, llama3
  // yarn, llama3; absent: max_position_embeddings
  std::optional<std::int64_t> original_max_position_embeddings;
  // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  // proportional: the share of frequencies that rotate, the highest ones; the others are 0
  double rotated = 1.0;
};

// The head_dim / 2 inverse frequencies, and the factor of cosines and sines. A dynamic
// configuration gives those for factor * max_position_embeddings positions: the only table that
// does not depend on how requests are batched.
struct RopeFrequencies {
  std::vector<float> inverse;
  float attention_scaling = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t head_dim);

// [positions][head_dim]: cosines, then sines, as kernels/pointwise/norm_rope_store.h reads them.
std::vector<float> rope_table(const RopeConfig& config, std::int64_t head_dim,
                              std::int64_t positions);

// The table in device memory, shared by all layers of a model.
class RopeTable {
 public:
  // Waits for the copy. Allocates one Buffer ("rope table").
  RopeTable(const RopeConfig& config, std::int64_t head_dim, std::int64_t positions,
            Backend& backend);

  // [positions, head_dim], float32.
  TensorView cos_sin() const { return cos_sin_; }

 private:
  Buffer memory_;
  TensorView cos_sin_;
};

}  // namespace nvllm::layers
