// Norms, rotation and store on the CPU: head by head, eight elements at a time.
#include "kernels/pointwise/norm_rope_store.h"

#include <cmath>
#include <cstring>

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels::cpu {
namespace {

// 1 / sqrt(mean of squares + epsilon) of a head.
template <typename T>
float norm_scale(const T* head, std::int64_t head_dim, float epsilon) {
  __m256 squares = _mm256_setzero_ps();
  std::int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    const __m256 x = load8(head + i);
    squares = _mm256_fmadd_ps(x, x, squares);
  }
  float sum = sum8(squares);
  for (; i < head_dim; ++i) sum += to_float(head[i]) * to_float(head[i]);
  return 1.0f / std::sqrt(sum / static_cast<float>(head_dim) + epsilon);
}

// `to` may be `from`. norm: nullptr: none.
template <typename T>
void norm_and_rotate(const T* from, T* to, const T* norm, float epsilon, const float* cos_sin,
                     std::int64_t head_dim) {
  const std::int64_t half = head_dim / 2;
  const float scale = norm == nullptr ? 1.0f : norm_scale(from, head_dim, epsilon);
  const __m256 scales = _mm256_set1_ps(scale);
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    __m256 low = load8(from + i), high = load8(from + half + i);
    if (norm != nullptr) {
      low = _mm256_mul_ps(_mm256_mul_ps(low, scales), load8(norm + i));
      high = _mm256_mul_ps(_mm256_mul_ps(high, scales), load8(norm + half + i));
    }
    const __m256 cosine = load8(cos_sin + i), sine = load8(cos_sin + half + i);
    store8(to + i, _mm256_fmsub_ps(low, cosine, _mm256_mul_ps(high, sine)));
    store8(to + half + i, _mm256_fmadd_ps(high, cosine, _mm256_mul_ps(low, sine)));
  }
  for (; i < half; ++i) {
    float low = to_float(from[i]), high = to_float(from[half + i]);
    if (norm != nullptr) {
      low = low * scale * to_float(norm[i]);
      high = high * scale * to_float(norm[half + i]);
    }
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    to[i] = from_float<T>(low * cosine - high * sine);
    to[half + i] = from_float<T>(high * cosine + low * sine);
  }
}

template <typename T>
struct Job {
  NormRopeStore args;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t head_dim = args.kv.head_dim();
      T* q = args.qkv.as<T>() + row * args.qkv.shape[1];
      const float* cos_sin =
          args.cos_sin.as<float>() + args.positions.as<std::int32_t>()[row] * head_dim;
      for (std::int64_t head = 0; head < args.heads; ++head) {
        T* mine = q + head * head_dim;
        norm_and_rotate(mine, mine, args.q_norm.as<T>(), args.epsilon, cos_sin, head_dim);
      }
      const std::int64_t slot = args.slots.as<std::int64_t>()[row];
      if (slot >= 0) store(q + args.heads * head_dim, cos_sin, slot);
    }
  }

  // The row's keys, and the values behind them.
  void store(const T* k, const float* cos_sin, std::int64_t slot) const {
    const std::int64_t head_dim = args.kv.head_dim(), kv_heads = args.kv.kv_heads();
    const auto& stride = args.kv.keys.stride;
    std::int64_t to =
        slot / args.kv.block_size() * stride[0] + slot % args.kv.block_size() * stride[1];
    const T* v = k + kv_heads * head_dim;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      norm_and_rotate(k, args.kv.keys.as<T>() + to, args.k_norm.as<T>(), args.epsilon, cos_sin,
                      head_dim);
      std::memcpy(args.kv.values.as<T>() + to, v, head_dim * sizeof(T));
      k += head_dim, v += head_dim, to += stride[2];
    }
  }
};

}  // namespace

void norm_rope_store(const NormRopeStore& args, Stream& stream) {
  with_element_type(args.qkv.dtype, [&]<typename T>(T) {
    submit_rows(stream, args.qkv.shape[0], 2 * args.qkv.shape[1] * sizeof(T), Job<T>{args});
  });
}

}  // namespace nvllm::kernels::cpu
