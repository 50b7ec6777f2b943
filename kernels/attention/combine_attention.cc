#include "kernels/attention/combine_attention.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/attention/backends.h"
#include "kernels/attention/kv_view.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels {

void check_combine_attention(const CombineAttention& args) {
  constexpr Arguments check("combine_attention");
  const TensorView& out = args.out;
  if (args.count < 1 || args.count > kMaxAttentionParts) {
    fail("combine_attention: count is ", args.count, "; it must be 1 to ", kMaxAttentionParts);
  }
  check.require_floats(out, "out", 3, "[rows, heads, head_dim]");
  check.require_dense(out, "out");
  check.require_vectors(out, "out");
  const std::int64_t rows = out.shape[0], heads = out.shape[1], head_dim = out.shape[2];
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    fail("combine_attention: out is ", out.describe(), "; head_dim must be a multiple of 8 up to ",
         kMaxHeadDim);
  }
  for (int i = 0; i < args.count; ++i) {
    const CombineAttention::Part& part = args.parts[i];
    check.require_floats(part.out, "a part's out", 3, "[rows, heads, head_dim]");
    check.require_dense(part.out, "a part's out", part.out.dtype, {rows, heads, head_dim});
    check.require_vectors(part.out, "a part's out");
    check.require_dense(part.lse, "a part's lse", DType::f32, {rows, heads});
    if (part.out.data == out.data && part.out.dtype != out.dtype && out.elements() > 0) {
      fail("combine_attention: out is ", out.describe(), " in the place of a part, ",
           part.out.describe(), "; they must have one type");
    }
  }
  if (args.lse.data == nullptr) return;
  check.require_dense(args.lse, "lse", DType::f32, {rows, heads});
}

void combine_attention(const CombineAttention& args, Stream& stream) {
  check_combine_attention(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, combine_attention(args, stream));
}

// --- the CPU version: bound by memory, as every part is read once and the result is written once

namespace cpu {
namespace {

__m256 load8(const TensorView& tensor, std::int64_t at) {
  return with_element_type(tensor.dtype,
                           [&]<typename T>(T) { return kernels::load8(tensor.as<T>() + at); });
}

void store8(const TensorView& tensor, std::int64_t at, __m256 value) {
  with_element_type(tensor.dtype,
                    [&]<typename T>(T) { kernels::store8(tensor.as<T>() + at, value); });
}

// Combines one head of one row.
void combine(const CombineAttention& args, std::int64_t head) {
  const auto part_lse = [&](int i) { return args.parts[i].lse.as<float>()[head]; };
  float weight[kMaxAttentionParts], row_max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int i = 0; i < args.count; ++i) row_max = std::max(row_max, part_lse(i));
  const float reference = std::isinf(row_max) && row_max < 0 ? 0 : row_max;
  for (int i = 0; i < args.count; ++i) sum += weight[i] = std::exp(part_lse(i) - reference);
  const __m256 factor = _mm256_set1_ps(sum == 0 ? 0 : 1 / sum);
  const std::int64_t head_dim = args.out.shape[2];
  for (std::int64_t d = head * head_dim; d < (head + 1) * head_dim; d += kLanes) {
    __m256 value = _mm256_setzero_ps();
    for (int i = 0; i < args.count; ++i) {
      if (weight[i] == 0) continue;
      value = _mm256_fmadd_ps(_mm256_set1_ps(weight[i]), load8(args.parts[i].out, d), value);
    }
    store8(args.out, d, _mm256_mul_ps(value, factor));
  }
  if (args.lse.data != nullptr) args.lse.as<float>()[head] = reference + std::log(sum);
}

}  // namespace

void combine_attention(const CombineAttention& args, Stream& stream) {
  const std::int64_t heads = args.out.shape[1];
  const std::int64_t elements = (args.count + 1) * heads * args.out.shape[2];
  submit_rows(stream, args.out.shape[0], elements * static_cast<std::int64_t>(sizeof(float)),
              [args, heads](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin * heads; i < end * heads; ++i) combine(args, i);
              });
}

}  // namespace cpu
}  // namespace nvllm::kernels
