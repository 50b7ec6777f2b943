// RopeTable: the cosines and sines by position in device memory, one for all layers of a model.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "layers/rope.h"

namespace nvllm::layers {

class RopeTable {
 public:
  // Waits for the copy. One Buffer ("rope table").
  RopeTable(const RopeConfig& config, std::int64_t head_dim, std::int64_t positions,
            Backend& backend);

  // [positions, head_dim], float32, as kernels/pointwise/norm_rope_store.h takes it.
  TensorView cos_sin() const { return cos_sin_; }

 private:
  Buffer memory_;
  TensorView cos_sin_;
};

}  // namespace nvllm::layers
