#include "kernels/attention/kv_view.h"

#include "base/error.h"

namespace nvllm::kernels {
namespace {

void check_cache(const TensorView& cache, const char* name, const char* operation) {
  const bool known = cache.dtype == DType::f32 || cache.dtype == DType::bf16 ||
                     cache.dtype == DType::f16 || cache.dtype == DType::u8;
  if (!known) {
    fail(operation, ": ", name, " is ", cache.describe(),
         "; it must be float32, bfloat16 or float16, or uint8 (E4M3)");
  }
  if (cache.rank != 4) {
    fail(operation, ": ", name, " is ", cache.describe(),
         "; it must be [blocks, block_size, kv_heads, head_dim]");
  }
  if (!cache.aligned(size_of(cache.dtype))) {
    fail(operation, ": ", name, " lies at ", cache.data, ", which is no address of a ",
         name_of(cache.dtype));
  }
  if (cache.elements() == 0) return;
  if (cache.data == nullptr) fail(operation, ": ", name, " has no memory");
  for (int axis = 0; axis < cache.rank; ++axis) {
    const std::int64_t stride = cache.stride[axis];
    if (cache.shape[axis] == 1) continue;  // the stride is never used
    const bool dense = axis == 3;
    if (dense ? stride != 1 : stride < cache.shape[3]) {
      fail(operation, ": ", name, " is ", cache.describe(), " with stride ", stride, " of axis ",
           axis, "; it must be ", dense ? "1" : "at least a head");
    }
  }
}

}  // namespace

void check_kv_view(const KvView& kv, const char* operation) {
  check_cache(kv.keys, "keys", operation);
  check_cache(kv.values, "values", operation);
  const bool alike = kv.values.dtype == kv.keys.dtype && kv.values.shape == kv.keys.shape &&
                     kv.values.stride == kv.keys.stride;
  if (!alike) {
    fail(operation, ": values are ", kv.values.describe(), ", but keys are ", kv.keys.describe(),
         "; both must have one type, shape and strides");
  }
  const TensorView& table = kv.block_table;
  if (table.data == nullptr) return;
  if (table.dtype != DType::i32 || table.rank != 2) {
    fail(operation, ": block_table is ", table.describe(),
         "; it must be int32 [sequences, blocks of the longest]");
  }
  require_contiguous(table, operation, "block_table");
  if (!table.aligned(sizeof(std::int32_t)))
    fail(operation, ": block_table lies at ", table.data, ", which is no address of an int32");
}

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
