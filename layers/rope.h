// RoPE: the cosines and sines by position, for every way of stretching a model's context, and the
// table of them in device memory.
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
  std::int64_t max_position_embeddings = 0;  // of the model

  double factor = 1.0;  // linear, dynamic, yarn, llama3
  // yarn, llama3; absent: max_position_embeddings
  std::optional<std::int64_t> original_max_position_embeddings;
  // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  // proportional: of the frequencies the share that rotates, the highest ones; the others are 0
  double rotated = 1.0;
};

// The inverse frequencies, head_dim / 2 of them, and what cosines and sines are multiplied with. A
// dynamic configuration gives those for factor * max_position_embeddings positions: the one table
// that does not depend on how a request is batched.
struct RopeFrequencies {
  std::vector<float> inverse;
  float attention_scaling = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t head_dim);

// [positions][head_dim]: the cosines, then the sines, as kernels/pointwise/norm_rope_store.h reads
// them.
std::vector<float> rope_table(const RopeConfig& config, std::int64_t head_dim,
                              std::int64_t positions);

// That table in device memory, one for all layers of a model.
class RopeTable {
 public:
  // Waits for the copy. One Buffer ("rope table").
  RopeTable(const RopeConfig& config, std::int64_t head_dim, std::int64_t positions,
            Backend& backend);

  // [positions, head_dim], float32.
  TensorView cos_sin() const { return cos_sin_; }

 private:
  Buffer memory_;
  TensorView cos_sin_;
};

}  // namespace nvllm::layers
