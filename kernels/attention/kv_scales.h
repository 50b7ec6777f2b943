// The scales of an E4m3 KV cache (device/e4m3.h): [2, kv_heads], float32. A key is its E4m3 value
// times scales[0][head], a value its E4m3 value times scales[1][head]. Without scales (data ==
// nullptr) the factors are 1.
#pragma once

#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// On the host.
inline float key_scale(const TensorView& scales, std::int64_t kv_head) {
  return scales.data == nullptr ? 1.0f : scales.as<float>()[kv_head];
}
inline float value_scale(const TensorView& scales, std::int64_t kv_head) {
  return scales.data == nullptr ? 1.0f : scales.as<float>()[scales.shape[1] + kv_head];
}

// Throws an Error that names `operation` if the scales do not fit the cache.
void check_kv_scales(const TensorView& scales, const KvView& kv, const char* operation);

}  // namespace nvllm::kernels
