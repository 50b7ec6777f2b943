#include "kernels/pointwise/norm_rope_store.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("norm_rope_store");

// What happens to one head of q or k, in float32.
template <typename T>
void norm_and_rotate(const T* from, const TensorView& norm, float epsilon, const float* cos_sin,
                     std::int64_t head_dim, float* to) {
  float scale = 1;
  if (norm.data != nullptr) {
    double sum = 0;
    for (std::int64_t i = 0; i < head_dim; ++i) sum += to_float(from[i]) * to_float(from[i]);
    const float mean = static_cast<float>(sum) / static_cast<float>(head_dim);
    scale = 1.0f / std::sqrt(mean + epsilon);
  }
  const auto normed = [&](std::int64_t i) {
    const float x = to_float(from[i]);
    return norm.data == nullptr ? x : x * scale * to_float(norm.as<T>()[i]);
  };
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    const float low = normed(i), high = normed(half + i);
    to[i] = low * cosine - high * sine;
    to[half + i] = high * cosine + low * sine;
  }
}

template <typename T>
void reference(const NormRopeStore& args) {
  const std::int64_t head_dim = args.kv.head_dim(), kv_heads = args.kv.kv_heads();
  const std::int64_t block_size = args.kv.block_size();
  const auto at = [&](const TensorView& cache, std::int64_t slot, std::int64_t head) {
    return cache.as<T>() + slot / block_size * cache.stride[0] +
           slot % block_size * cache.stride[1] + head * cache.stride[2];
  };
  float rotated[kMaxHeadDim];
  for (std::int64_t row = 0; row < args.qkv.shape[0]; ++row) {
    T* q = args.qkv.as<T>() + row * args.qkv.shape[1];
    const T* k = q + args.heads * head_dim;
    const T* v = k + kv_heads * head_dim;
    const float* cos_sin =
        args.cos_sin.as<float>() + args.positions.as<std::int32_t>()[row] * head_dim;
    for (std::int64_t head = 0; head < args.heads; ++head) {
      T* mine = q + head * head_dim;
      norm_and_rotate(mine, args.q_norm, args.epsilon, cos_sin, head_dim, rotated);
      for (std::int64_t i = 0; i < head_dim; ++i) mine[i] = from_float<T>(rotated[i]);
    }
    const std::int64_t slot = args.slots.as<std::int64_t>()[row];
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      norm_and_rotate(k + head * head_dim, args.k_norm, args.epsilon, cos_sin, head_dim, rotated);
      T* key = at(args.kv.keys, slot, head);
      T* value = at(args.kv.values, slot, head);
      for (std::int64_t i = 0; i < head_dim; ++i) {
        key[i] = from_float<T>(rotated[i]);
        value[i] = v[head * head_dim + i];
      }
    }
  }
}

}  // namespace

void check_norm_rope_store(const NormRopeStore& args) {
  check_kv_view(args.kv, kCheck.operation());
  const std::int64_t head_dim = args.kv.head_dim(), kv_heads = args.kv.kv_heads();
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    fail("norm_rope_store: keys is ", args.kv.keys.describe(), "; head_dim must be even and 2 to ",
         kMaxHeadDim);
  }
  if (args.heads < 0) fail("norm_rope_store: heads is ", args.heads, "; it must be at least 0");

  kCheck.require_floats(args.qkv, "qkv", 2, "[rows, (heads + 2 * kv_heads) * head_dim]");
  const std::int64_t rows = args.qkv.shape[0];
  const DType type = args.kv.keys.dtype;
  kCheck.require(args.qkv, "qkv", type, {rows, (args.heads + 2 * kv_heads) * head_dim});
  kCheck.require_dense(args.qkv, "qkv");
  if ((args.q_norm.data == nullptr) != (args.k_norm.data == nullptr)) {
    fail("norm_rope_store: only ", args.q_norm.data == nullptr ? "k" : "q",
         "_norm is given; q_norm and k_norm go together");
  }
  if (args.q_norm.data != nullptr) {
    kCheck.require(args.q_norm, "q_norm", type, {head_dim});
    kCheck.require_dense(args.q_norm, "q_norm");
    kCheck.require(args.k_norm, "k_norm", type, {head_dim});
    kCheck.require_dense(args.k_norm, "k_norm");
  }
  kCheck.require(args.cos_sin, "cos_sin", DType::f32, {args.cos_sin.shape[0], head_dim});
  kCheck.require_dense(args.cos_sin, "cos_sin");
  kCheck.require(args.positions, "positions", DType::i32, {rows});
  kCheck.require_dense(args.positions, "positions");
  kCheck.require(args.slots, "slots", DType::i64, {rows});
  kCheck.require_dense(args.slots, "slots");
}

void norm_rope_store(const NormRopeStore& args, Stream& stream) {
  check_norm_rope_store(args);
  if (args.qkv.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::norm_rope_store(args, stream);
#endif
  cpu::norm_rope_store(args, stream);
}

void norm_rope_store_reference(const NormRopeStore& args) {
  check_norm_rope_store(args);
  with_element_type(args.qkv.dtype, [&]<typename T>(T) { reference<T>(args); });
}

}  // namespace nvllm::kernels
