// Combines partial attention results on the CPU, one head of a row at a time. It is bound by
// memory: every part is read once and the result is written once. A thread takes whole rows.
// Launcher: combine_attention(), at the end.
#include "kernels/attention/combine_attention.h"

#include <cmath>
#include <limits>

#include "kernels/attention/backends.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels::cpu {
namespace {

// Loads and stores eight elements of a tensor of any element type.
struct Elements {
  void* data;
  DType type;

  explicit Elements(const TensorView& tensor) : data(tensor.data), type(tensor.dtype) {}
  Elements() : data(nullptr), type(DType::f32) {}

  __m256 load(std::int64_t at) const {
    switch (type) {
      case DType::f32: return load8(static_cast<const float*>(data) + at);
      case DType::bf16: return load8(static_cast<const Bf16*>(data) + at);
      default: return load8(static_cast<const F16*>(data) + at);
    }
  }
  void store(std::int64_t at, __m256 value) const {
    switch (type) {
      case DType::f32: return store8(static_cast<float*>(data) + at, value);
      case DType::bf16: return store8(static_cast<Bf16*>(data) + at, value);
      default: return store8(static_cast<F16*>(data) + at, value);
    }
  }
};

struct Job {
  Elements out;
  float* lse;  // nullptr: not wanted
  Elements part[kMaxAttentionParts];
  const float* part_lse[kMaxAttentionParts];
  int count;
  std::int64_t heads, head_dim;

  explicit Job(const CombineAttention& args)
      : out(args.out),
        lse(args.lse.as<float>()),
        count(args.count),
        heads(args.out.shape[1]),
        head_dim(args.out.shape[2]) {
    for (int i = 0; i < count; ++i) {
      part[i] = Elements(args.parts[i].out);
      part_lse[i] = args.parts[i].lse.as<float>();
    }
  }

  // Rows [begin, end).
  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t head = begin * heads; head < end * heads; ++head) combine(head);
  }

  void combine(std::int64_t head) const {
    float weight[kMaxAttentionParts], row_max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int i = 0; i < count; ++i) row_max = std::max(row_max, part_lse[i][head]);
    const float reference = std::isinf(row_max) && row_max < 0 ? 0 : row_max;
    for (int i = 0; i < count; ++i) sum += weight[i] = std::exp(part_lse[i][head] - reference);
    const __m256 factor = _mm256_set1_ps(sum == 0 ? 0 : 1 / sum);
    for (std::int64_t d = head * head_dim; d < (head + 1) * head_dim; d += kLanes) {
      __m256 value = _mm256_setzero_ps();
      for (int i = 0; i < count; ++i) {
        if (weight[i] == 0) continue;
        value = _mm256_fmadd_ps(_mm256_set1_ps(weight[i]), part[i].load(d), value);
      }
      out.store(d, _mm256_mul_ps(value, factor));
    }
    if (lse != nullptr) lse[head] = reference + std::log(sum);
  }
};

}  // namespace

void combine_attention(const CombineAttention& args, Stream& stream) {
  const std::int64_t row = args.out.shape[1] * args.out.shape[2];
  const std::int64_t elements = (args.count + 1) * row;
  submit_rows(stream, args.out.shape[0], elements * static_cast<std::int64_t>(sizeof(float)),
              Job(args));
}

}  // namespace nvllm::kernels::cpu
