#include "kernels/pointwise/norm_rope_store.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/e4m3_vector.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("norm_rope_store");

}  // namespace

void check_norm_rope_store(const NormRopeStore& args) {
  check_kv_view(args.kv, kCheck.operation());
  const std::int64_t head_dim = args.kv.head_dim();
  const std::int64_t kv_heads = args.shares_kv ? 0 : args.kv.kv_heads();
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    fail("norm_rope_store: keys is ", args.kv.keys.describe(), "; head_dim must be even and 2 to ",
         kMaxHeadDim);
  }
  if (args.heads < 0) fail("norm_rope_store: heads is ", args.heads, "; it must be at least 0");

  kCheck.require_floats(args.qkv, "qkv", 2, "[rows, (heads + 2 * kv_heads) * head_dim]");
  const std::int64_t rows = args.qkv.shape[0];
  const DType type = args.kv.keys.dtype == DType::u8 ? args.qkv.dtype : args.kv.keys.dtype;
  check_kv_scales(args.kv_scales, args.kv, kCheck.operation());
  kCheck.require_dense(args.qkv, "qkv", type, {rows, (args.heads + 2 * kv_heads) * head_dim});
  if (args.shares_kv && args.k_norm.data != nullptr) {
    fail("norm_rope_store: k_norm is given, but there is q alone");
  }
  if (!args.shares_kv && (args.q_norm.data == nullptr) != (args.k_norm.data == nullptr)) {
    fail("norm_rope_store: only ", args.q_norm.data == nullptr ? "k" : "q",
         "_norm is given; q_norm and k_norm go together");
  }
  if (args.q_norm.data != nullptr) {
    kCheck.require_dense(args.q_norm, "q_norm", type, {head_dim});
    if (!args.shares_kv) kCheck.require_dense(args.k_norm, "k_norm", type, {head_dim});
  }
  const std::int64_t rotary = args.cos_sin.rank == 2 ? args.cos_sin.shape[1] : 0;
  if (rotary < 2 || rotary > head_dim || rotary % 2 != 0) {
    fail("norm_rope_store: cos_sin is ", args.cos_sin.describe(),
         "; it must be [positions, rotary], with an even number from 2 to ", head_dim);
  }
  kCheck.require_dense(args.cos_sin, "cos_sin", DType::f32, {args.cos_sin.shape[0], rotary});
  kCheck.require_dense(args.positions, "positions", DType::i32, {rows});
  kCheck.require_dense(args.slot_mapping, "slot_mapping", DType::i64, {rows});
}

void norm_rope_store(const NormRopeStore& args, Stream& stream) {
  check_norm_rope_store(args);
  if (args.qkv.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, norm_rope_store(args, stream));
}

// Norms, rotation and store on the CPU: head by head, eight elements at a time.
namespace cpu {
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

// weight: nullptr: no norm.
template <typename T>
struct HeadNorm {
  const T* weight;
  float epsilon, weight_offset;
};

// The cosines and sines of a position, for the first `size` elements of a head.
struct Rotation {
  const float* cos_sin;
  std::int64_t size;
};

// `to` may be `from`.
template <typename T, typename To>
void norm_and_rotate(const T* from, To* to, const HeadNorm<T>& norm, const Rotation& rotation,
                     std::int64_t head_dim) {
  const std::int64_t half = rotation.size / 2;
  const float* const cos_sin = rotation.cos_sin;
  const T* const weight = norm.weight;
  const float scale = weight == nullptr ? 1.0f : norm_scale(from, head_dim, norm.epsilon);
  const __m256 scales = _mm256_set1_ps(scale), offsets = _mm256_set1_ps(norm.weight_offset);
  const auto factors8 = [&](std::int64_t at) { return _mm256_add_ps(offsets, load8(weight + at)); };
  const auto factor = [&](std::int64_t at) { return norm.weight_offset + to_float(weight[at]); };
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    __m256 low = load8(from + i), high = load8(from + half + i);
    if (weight != nullptr) {
      low = _mm256_mul_ps(_mm256_mul_ps(low, scales), factors8(i));
      high = _mm256_mul_ps(_mm256_mul_ps(high, scales), factors8(half + i));
    }
    const __m256 cosine = load8(cos_sin + i), sine = load8(cos_sin + half + i);
    store8(to + i, _mm256_fmsub_ps(low, cosine, _mm256_mul_ps(high, sine)));
    store8(to + half + i, _mm256_fmadd_ps(high, cosine, _mm256_mul_ps(low, sine)));
  }
  for (; i < half; ++i) {
    float low = to_float(from[i]), high = to_float(from[half + i]);
    if (weight != nullptr) {
      low = low * scale * factor(i);
      high = high * scale * factor(half + i);
    }
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    to[i] = from_float<To>(low * cosine - high * sine);
    to[half + i] = from_float<To>(high * cosine + low * sine);
  }
  for (i = rotation.size; i < head_dim; ++i) {
    const float value = to_float(from[i]);
    to[i] = from_float<To>(weight == nullptr ? value : value * scale * factor(i));
  }
}

template <typename T>
struct Job {
  NormRopeStore args;

  HeadNorm<T> norm(const TensorView& weight) const {
    return {weight.as<T>(), args.epsilon, args.weight_offset};
  }

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t head_dim = args.kv.head_dim();
      T* q = args.qkv.as<T>() + row * args.qkv.shape[1];
      const std::int64_t size = args.cos_sin.shape[1];
      const Rotation rotation{
          args.cos_sin.as<float>() + args.positions.as<std::int32_t>()[row] * size, size};
      for (std::int64_t head = 0; head < args.heads; ++head) {
        T* mine = q + head * head_dim;
        norm_and_rotate(mine, mine, norm(args.q_norm), rotation, head_dim);
      }
      const std::int64_t slot = args.slot_mapping.as<std::int64_t>()[row];
      if (slot >= 0 && !args.shares_kv) store(q + args.heads * head_dim, rotation, slot);
    }
  }

  // Stores the row's keys, and the values that follow them.
  void store(const T* k, const Rotation& rotation, std::int64_t slot) const {
    const std::int64_t head_dim = args.kv.head_dim(), kv_heads = args.kv.kv_heads();
    const std::int64_t block = slot / args.kv.block_size(), inside = slot % args.kv.block_size();
    const T* v = k + kv_heads * head_dim;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      const std::int64_t to = args.kv.offset(block, inside, head);
      if (args.kv.keys.dtype == DType::u8) {
        store_as_e4m3(k, v, rotation, head, to);
      } else {
        norm_and_rotate(k, args.kv.keys.as<T>() + to, norm(args.k_norm), rotation, head_dim);
        store_value(v, args.kv.values.as<T>() + to);
      }
      k += head_dim, v += head_dim;
    }
  }

  void store_value(const T* v, T* to) const {
    const std::int64_t head_dim = args.kv.head_dim();
    if (!args.norms_v) {
      std::memcpy(to, v, head_dim * sizeof(T));
      return;
    }
    const float scale = norm_scale(v, head_dim, args.epsilon);
    for (std::int64_t i = 0; i < head_dim; ++i) to[i] = from_float<T>(to_float(v[i]) * scale);
  }

  void store_as_e4m3(const T* k, const T* v, const Rotation& rotation, std::int64_t kv_head,
                     std::int64_t to) const {
    const std::int64_t head_dim = args.kv.head_dim();
    float rotated[kMaxHeadDim];
    norm_and_rotate(k, rotated, norm(args.k_norm), rotation, head_dim);
    const auto load = [](const auto* from) { return load8(from); };
    store_e4m3(args.kv.keys.as<E4m3>() + to, rotated, head_dim,
               1 / key_scale(args.kv_scales, kv_head), load);
    const float of_v = args.norms_v ? norm_scale(v, head_dim, args.epsilon) : 1;
    store_e4m3(args.kv.values.as<E4m3>() + to, v, head_dim,
               of_v / value_scale(args.kv_scales, kv_head), load);
  }
};

}  // namespace

void norm_rope_store(const NormRopeStore& args, Stream& stream) {
  with_element_type(args.qkv.dtype, [&]<typename T>(T) {
    submit_rows(stream, args.qkv.shape[0], 2 * args.qkv.shape[1] * sizeof(T), Job<T>{args});
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
