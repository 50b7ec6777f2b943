#include "kernels/attention/kv_scales.h"

#include "base/error.h"

namespace nvllm::kernels {

void check_kv_scales(const TensorView& scales, const KvView& kv, const char* operation) {
  if (scales.data == nullptr) return;
  if (kv.keys.dtype != DType::u8) {
    fail(operation, ": kv_scales are given, but keys are ", kv.keys.describe(),
         "; only a cache of uint8 (E4M3) has scales");
  }
  const bool fits = scales.dtype == DType::f32 && scales.rank == 2 && scales.shape[0] == 2 &&
                    scales.shape[1] == kv.kv_heads() && scales.contiguous() &&
                    scales.aligned(sizeof(float));
  if (!fits) {
    fail(operation, ": kv_scales is ", scales.describe(), "; it must be dense float32 [2, ",
         kv.kv_heads(), "]");
  }
}

}  // namespace nvllm::kernels
