// Norms, RoPE and store on the GPU. A few lanes hold a head in registers: each has the vectors at
// one position of the lower and of the upper half of the rotated part, or two vectors after it.
// They process several heads of a row, which share cosines and sines. Kv is the type of the cache:
// that of the rows, or E4m3.
#include <type_traits>

#include "base/check.h"
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kManyHeads = 4;  // processed in sequence by the same lanes, if there are many rows
// Fewer heads than this leave most of a GPU idle: then lanes process one each.
constexpr std::int64_t kFewHeads = 4096;

template <typename T, typename Kv>
struct Params {
  T* qkv;
  const T* q_norm;  // nullptr: no norms
  const T* k_norm;
  const float* cos_sin;
  const int* positions;
  const long long* slot_mapping;
  Kv* keys;
  Kv* values;
  const float* kv_scales;  // with E4m3; nullptr: all are 1
  long long block_size, block_stride, token_stride, head_stride;
  long long rows;
  unsigned heads, kv_heads;
  int head_dim, rotary;
  float inverse_head_dim, epsilon, weight_offset;
  unsigned groups;      // per row; a group's heads are `groups` apart
  unsigned lanes_bits;  // log2 of the lanes of a group
  bool history_is_visible;
  bool norms_v;  // only read by the element-wise kernel
};

// Which heads are normed. Those of v have no weights.
enum class Norms : std::uint8_t { none, of_q_and_k, of_v_too };

// A thread's position.
struct Place {
  long long row;
  unsigned group;
  int lane;
  bool inside;
  // The row's KV cache offset; -1: not stored.
  long long stored = -1;
  const float* cos_sin = nullptr;

  template <typename T, typename Kv>
  __device__ __forceinline__ explicit Place(const Params<T, Kv>& p) {
    const unsigned item = (blockIdx.x * kBlockThreads + threadIdx.x) >> p.lanes_bits;
    const unsigned its_row = item / p.groups;
    row = its_row;
    group = item - its_row * p.groups;
    lane = static_cast<int>(threadIdx.x & ((1u << p.lanes_bits) - 1));
    inside = row < p.rows;
    if (!inside) return;
    const long long slot = p.slot_mapping[row];
    cos_sin = p.cos_sin + static_cast<long long>(p.positions[row]) * p.rotary;
    if (slot < 0) return;
    const long long block = slot / p.block_size;
    stored = block * p.block_stride + (slot - block * p.block_size) * p.token_stride;
  }
};

// The address of head number `head` of a row (q's, k's, v's); nullptr: not stored.
template <typename T>
__device__ __forceinline__ T* destination(const Params<T, T>& p, unsigned head, T* from,
                                          long long stored) {
  if (head < p.heads) return from;
  if (stored < 0) return nullptr;
  const bool value = head >= p.heads + p.kv_heads;
  const unsigned kv_head = head - p.heads - (value ? p.kv_heads : 0);
  return (value ? p.values : p.keys) + stored + kv_head * p.head_stride;
}

// The address of a head of k or v in an E4m3 cache, and its factor.
struct E4m3Place {
  E4m3* to;
  float factor;

  template <typename T>
  __device__ __forceinline__ E4m3Place(const Params<T, E4m3>& p, unsigned head, long long stored) {
    const bool value = head >= p.heads + p.kv_heads;
    const unsigned kv_head = head - p.heads - (value ? p.kv_heads : 0);
    to = (value ? p.values : p.keys) + stored + kv_head * p.head_stride;
    factor = p.kv_scales == nullptr ? 1.0f : __frcp_rn(p.kv_scales[head - p.heads]);
  }

  // Stores one vector of adjacent values.
  template <typename T>
  __device__ __forceinline__ void store(int at, const Floats<T>& x) const {
    static_assert(Vector<T>::kElements % 4 == 0);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; i += 4) {
      const unsigned low = narrow_to_e4m3(x.element[i] * factor, x.element[i + 1] * factor);
      const unsigned high = narrow_to_e4m3(x.element[i + 2] * factor, x.element[i + 3] * factor);
      *reinterpret_cast<unsigned*>(to + at + i) = low | high << 16;
    }
  }
};

// 1 / sqrt(mean + epsilon) in all lanes of a group, whose squares it sums. All lanes of a warp call
// it.
template <typename T, typename Kv>
__device__ __forceinline__ float norm_scale(const Params<T, Kv>& p, float squares) {
  for (int lanes = 1; lanes < 1 << p.lanes_bits; lanes *= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, lanes);
  }
  return rsqrtf(fmaf(squares, p.inverse_head_dim, p.epsilon));
}

// One vector of adjacent floats.
template <typename T>
__device__ __forceinline__ Floats<T> load_floats(const float* from) {
  Floats<T> floats;
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    floats.element[i] = four.x, floats.element[i + 1] = four.y;
    floats.element[i + 2] = four.z, floats.element[i + 3] = four.w;
  }
  return floats;
}

template <typename T>
__device__ __forceinline__ float add_squares(const Vector<T>& vector, float sum) {
  const Floats<T> x = widen(vector);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) sum = fmaf(x.element[i], x.element[i], sum);
  return sum;
}

template <typename T>
__device__ __forceinline__ Floats<T> scaled(const Vector<T>& vector, float scale,
                                            const Vector<T>& weight, float weight_offset) {
  Floats<T> x = widen(vector);
  const Floats<T> factors = widen(weight);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    x.element[i] *= scale * (weight_offset + factors.element[i]);
  }
  return x;
}

template <typename T>
__device__ __forceinline__ void rotate(Floats<T>& x, Floats<T>& y, const Floats<T>& cosine,
                                       const Floats<T>& sine) {
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    const float c = cosine.element[i], s = sine.element[i];
    const float a = x.element[i], b = y.element[i];
    x.element[i] = fmaf(a, c, -__fmul_rn(b, s));
    y.element[i] = fmaf(b, c, __fmul_rn(a, s));
  }
}

template <typename T>
__device__ __forceinline__ Floats<T> scaled(const Vector<T>& vector, float scale) {
  Floats<T> x = widen(vector);
#pragma unroll
  for (float& element : x.element) element *= scale;
  return x;
}

// For rotated halves that are whole vectors at multiples of 16 bytes.
template <typename T, typename Kv, int kHeads, Norms kNorms>
__global__ void __launch_bounds__(kBlockThreads, 3) vectors_kernel(const Params<T, Kv> p) {
  launch_dependent_grids();
  if (!p.history_is_visible) wait_on_dependent_grids();
  constexpr int kElements = Vector<T>::kElements;
  constexpr bool kSame = std::is_same_v<T, Kv>, kNorm = kNorms != Norms::none;
  const Place at(p);
  const int half = p.rotary / 2;
  const bool rotated = at.lane * kElements < half;
  // The offsets of the lane's two vectors in a head.
  const int first = rotated ? at.lane * kElements : 2 * at.lane * kElements;
  const int second = first + (rotated ? half : kElements);
  const bool inside = at.inside && first < p.head_dim;
  const unsigned heads = p.heads + 2 * p.kv_heads;
  T* const row = p.qkv + at.row * heads * p.head_dim;
  const auto weight_of = [&](unsigned head) { return head < p.heads ? p.q_norm : p.k_norm; };
  // Addresses are computed, and everything except the row itself is loaded, while the previous
  // kernel is still running.
  Floats<T> cosine, sine;
  [[maybe_unused]] Vector<T> first_weights[2] = {};
  if (inside) {
    if (rotated) {
      cosine = load_floats<T>(at.cos_sin + first);
      sine = load_floats<T>(at.cos_sin + second);
    }
    if constexpr (kNorm && kHeads == 1) {
      first_weights[0] = load_vector(weight_of(at.group) + first);
      first_weights[1] = load_vector(weight_of(at.group) + second);
    }
  }
  if (p.history_is_visible) wait_on_dependent_grids();

  Vector<T> low[kHeads] = {}, high[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const unsigned head = at.group + h * p.groups;
    if (!inside || head >= heads) continue;
    low[h] = load_vector(row + head * p.head_dim + first);
    high[h] = load_vector(row + head * p.head_dim + second);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const unsigned head = at.group + h * p.groups;
    float scale = 1;
    Vector<T> low_weight = first_weights[0], high_weight = first_weights[1];
    if constexpr (kNorm) {
      if (kHeads > 1 && inside) {
        low_weight = load_vector(weight_of(head) + first);
        high_weight = load_vector(weight_of(head) + second);
      }
      scale = norm_scale(p, add_squares(high[h], add_squares(low[h], 0)));
    }
    if (!inside || head >= heads) continue;
    T* to = row + head * p.head_dim;
    if constexpr (kSame) to = destination(p, head, to, at.stored);
    if (to == nullptr || (!kSame && head >= p.heads && at.stored < 0)) continue;
    [[maybe_unused]] Floats<T> x, y;
    if (head < p.heads + p.kv_heads) {
      if constexpr (kNorm) {
        x = scaled(low[h], scale, low_weight, p.weight_offset);
        y = scaled(high[h], scale, high_weight, p.weight_offset);
      } else {
        x = widen(low[h]), y = widen(high[h]);
      }
      if (rotated) rotate<T>(x, y, cosine, sine);
      if (kSame || head < p.heads) low[h] = narrow(x), high[h] = narrow(y);
    } else if constexpr (kNorms == Norms::of_v_too) {
      x = scaled(low[h], scale), y = scaled(high[h], scale);
      if constexpr (kSame) low[h] = narrow(x), high[h] = narrow(y);
    } else if constexpr (!kSame) {
      x = widen(low[h]), y = widen(high[h]);
    }
    if constexpr (!kSame) {
      if (head >= p.heads) {
        const E4m3Place place(p, head, at.stored);
        place.store<T>(first, x), place.store<T>(second, y);
        continue;
      }
    }
    store_vector(to + first, low[h]);
    store_vector(to + second, high[h]);
  }
}

// For everything else: one warp per head, element by element. kWide: heads may have more than
// kMaxCudaHeadDim elements, and v may be normed.
template <typename T, typename Kv, bool kWide>
__global__ void __launch_bounds__(kBlockThreads) elements_kernel(const Params<T, Kv> p) {
  pdl_begin(true);
  constexpr int kPairs = (kWide ? kMaxHeadDim : kMaxCudaHeadDim) / 2 / 32;  // per lane
  constexpr bool kSame = std::is_same_v<T, Kv>;
  const Place at(p);
  const int half = p.rotary / 2, pairs = p.head_dim / 2;
  // Pair number i: rotated pairs are half apart, the others are adjacent.
  const auto low_of = [&](int i) { return i < half ? i : 2 * i; };
  const auto high_of = [&](int i) { return i < half ? half + i : 2 * i + 1; };
  const unsigned head = at.group;
  T* const from = p.qkv + (at.row * (p.heads + 2 * p.kv_heads) + head) * p.head_dim;
  if (!at.inside) return;  // the whole warp
  float x[kPairs] = {}, y[kPairs] = {};
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int i = at.lane + k * 32;
    if (i >= pairs) continue;
    x[k] = widen(from[low_of(i)]), y[k] = widen(from[high_of(i)]);
    squares = fmaf(x[k], x[k], fmaf(y[k], y[k], squares));
  }
  const float scale = norm_scale(p, squares);
  T* to = from;
  if constexpr (kSame) to = destination(p, head, from, at.stored);
  if (to == nullptr || (!kSame && head >= p.heads && at.stored < 0)) return;
  const bool rotates = head < p.heads + p.kv_heads;
  const T* weight = head < p.heads ? p.q_norm : p.k_norm;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int i = at.lane + k * 32;
    if (i >= pairs) continue;
    const bool normed_v = kWide && p.norms_v && !rotates;
    if (kSame && !rotates && !normed_v) {
      to[low_of(i)] = from[low_of(i)], to[high_of(i)] = from[high_of(i)];
      continue;
    }
    float a = x[k], b = y[k];
    if (normed_v) a *= scale, b *= scale;
    if (rotates && p.q_norm != nullptr) {
      a *= scale * (p.weight_offset + widen(weight[low_of(i)]));
      b *= scale * (p.weight_offset + widen(weight[high_of(i)]));
    }
    const bool rotated = rotates && i < half;
    float low = a, high = b;
    if (rotated) {
      const float c = at.cos_sin[i], s = at.cos_sin[half + i];
      low = fmaf(a, c, -__fmul_rn(b, s)), high = fmaf(b, c, __fmul_rn(a, s));
    }
    if constexpr (!kSame) {
      if (head >= p.heads) {
        const E4m3Place place(p, head, at.stored);
        place.to[low_of(i)] = narrow<E4m3>(low * place.factor);
        place.to[high_of(i)] = narrow<E4m3>(high * place.factor);
        continue;
      }
    }
    to[low_of(i)] = narrow<T>(low);
    to[high_of(i)] = narrow<T>(high);
  }
}

template <typename T>
bool in_vectors(const NormRopeStore& args) {
  constexpr int kElements = Vector<T>::kElements;
  const auto& stride = args.kv.keys.stride;
  // Half a head must fit a warp at one vector per lane; norms of v alone are rare.
  bool fits = args.kv.head_dim() <= 64 * kElements &&
              (!args.norms_v || args.q_norm.data != nullptr) &&
              args.cos_sin.shape[1] / 2 % kElements == 0 &&
              (args.kv.head_dim() - args.cos_sin.shape[1]) % (2 * kElements) == 0;
  for (int axis = 0; axis < 3; ++axis) fits = fits && stride[axis] % kElements == 0;
  for (const TensorView* tensor :
       {&args.qkv, &args.q_norm, &args.k_norm, &args.cos_sin, &args.kv.keys, &args.kv.values}) {
    fits = fits && tensor->aligned(16);
  }
  return fits;
}

template <typename T, typename Kv>
Params<T, Kv> params(const NormRopeStore& args) {
  Params<T, Kv> p;
  p.qkv = args.qkv.as<T>();
  p.q_norm = args.q_norm.as<T>();
  p.k_norm = args.k_norm.as<T>();
  p.cos_sin = args.cos_sin.as<float>();
  p.positions = args.positions.as<int>();
  p.slot_mapping = args.slot_mapping.as<long long>();
  p.keys = args.kv.keys.as<Kv>();
  p.values = args.kv.values.as<Kv>();
  p.kv_scales = args.kv_scales.as<float>();
  p.block_size = args.kv.block_size();
  p.block_stride = args.kv.keys.stride[0];
  p.token_stride = args.kv.keys.stride[1];
  p.head_stride = args.kv.keys.stride[2];
  p.rows = args.qkv.shape[0];
  p.heads = static_cast<unsigned>(args.heads);
  p.kv_heads = args.shares_kv ? 0 : static_cast<unsigned>(args.kv.kv_heads());
  p.head_dim = static_cast<int>(args.kv.head_dim());
  p.rotary = static_cast<int>(args.cos_sin.shape[1]);
  p.inverse_head_dim = 1.0f / static_cast<float>(p.head_dim);
  p.epsilon = args.epsilon;
  p.weight_offset = args.weight_offset;
  p.history_is_visible = args.history_is_visible;
  p.norms_v = args.norms_v;
  return p;
}

template <typename T, typename Kv, int kHeads>
auto vectors_kernel_of(const NormRopeStore& args) {
  if (args.q_norm.data == nullptr) return vectors_kernel<T, Kv, kHeads, Norms::none>;
  return args.norms_v ? vectors_kernel<T, Kv, kHeads, Norms::of_v_too>
                      : vectors_kernel<T, Kv, kHeads, Norms::of_q_and_k>;
}

template <typename T, typename Kv>
auto elements_kernel_of(const NormRopeStore& args) {
  const bool wide = args.norms_v || args.kv.head_dim() > kMaxCudaHeadDim;
  return wide ? elements_kernel<T, Kv, true> : elements_kernel<T, Kv, false>;
}

template <typename T, typename Kv>
void launch(const NormRopeStore& args, cudaStream_t stream) {
  Params<T, Kv> p = params<T, Kv>(args);
  const unsigned heads = p.heads + 2 * p.kv_heads;
  const bool vectors = in_vectors<T>(args);
  const bool few = p.rows * heads < kFewHeads;
  p.groups = !vectors || few ? heads : (heads + kManyHeads - 1) / kManyHeads;
  p.lanes_bits = 5;
  if (vectors) {
    const int used = p.head_dim / 2 / Vector<T>::kElements;
    for (p.lanes_bits = 0; 1 << p.lanes_bits < used;) ++p.lanes_bits;
  }
  const long long items = p.rows * p.groups;
  NVLLM_CHECK_LT(items, 1ll << 32);
  const long long threads = items << p.lanes_bits;
  const auto kernel = !vectors ? elements_kernel_of<T, Kv>(args)
                      : few    ? vectors_kernel_of<T, Kv, 1>(args)
                               : vectors_kernel_of<T, Kv, kManyHeads>(args);
  launch_with_pdl("launching norm_rope_store", kernel, blocks_for(threads, kBlockThreads),
                  kBlockThreads, stream, p);
}

}  // namespace

void norm_rope_store(const NormRopeStore& args, Stream& stream) {
  with_element_type(args.qkv.dtype, [&]<typename T>(T) {
    const cudaStream_t native = nvllm::cuda::native(stream);
    args.kv.keys.dtype == DType::u8 ? launch<T, E4m3>(args, native) : launch<T, T>(args, native);
  });
}

}  // namespace nvllm::kernels::cuda
