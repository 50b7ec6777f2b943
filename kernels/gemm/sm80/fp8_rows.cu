// Quantizes rows of activations to fp8: existing rows, or the results of an RMSNorm or a gated
// activation, which are then never stored as 16-bit floats. Memory-bound.
#include <cuda_fp8.h>

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/sm80/entry_points.h"
#include "kernels/pointwise/sm80/activation.cuh"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Fewer vectors than this fit on a large GPU at one per thread.
constexpr long long kManyVectors = 264 * 1024;

// --- a vector of a row ---------------------------------------------------------------------------

// The destination of rows: see Fp8Rows.
struct Fp8Out {
  unsigned* values;
  float* scales;
  long long scale_stride;
  int vectors;  // per row, 16 per group

  Fp8Out(const Fp8Rows& rows, std::int64_t inputs)
      : values(reinterpret_cast<unsigned*>(rows.values)),
        scales(rows.scales),
        scale_stride(rows.scale_stride),
        vectors(static_cast<int>(inputs / 8)) {}
};

__device__ __forceinline__ unsigned two_fp8(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// Stores vector number `vector` of a row, 8 inputs, in the order of a quantized weight's blocks:
// word k of thread t of a block holds inputs 16 k + 2 t + {0, 1, 8, 9} (quantized_weight.h). All
// lanes of a warp call it, lane n with vector n of two adjacent groups. If not `inside` (the same
// for the 16 lanes of a group) nothing is stored.
template <typename T>
__device__ __forceinline__ void store_fp8(const Fp8Out& out, long long row, int vector,
                                          const Vector<T>& inputs, bool inside) {
  const int lane = threadIdx.x % 32;
  const Floats<T> x = widen(inputs);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x.element[i]));
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
  const float inverse = largest > 0 ? kMaxFp8 / largest : 0.0f;
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = two_fp8(x.element[2 * i] * inverse, x.element[2 * i + 1] * inverse);

  // Two adjacent lanes have 16 inputs: the even one takes the words of threads 0 and 1, the odd one
  // those of threads 2 and 3.
  const unsigned low = pairs[0] | pairs[1] << 16, high = pairs[2] | pairs[3] << 16;
  const bool odd = lane % 2 == 1;
  const unsigned other = __shfl_xor_sync(~0u, odd ? low : high, 1);
  const unsigned first_eight = odd ? other : low, second_eight = odd ? high : other;
  const unsigned words[2] = {__byte_perm(first_eight, second_eight, 0x5410),
                             __byte_perm(first_eight, second_eight, 0x7632)};
  // Two lanes that are two apart exchange words k and k + 1 of these threads, so each has one
  // thread's.
  const bool upper = lane / 2 % 2 == 1;
  const unsigned neighbour = __shfl_xor_sync(~0u, upper ? words[0] : words[1], 2);
  const uint2 both = upper ? make_uint2(neighbour, words[1]) : make_uint2(words[0], neighbour);
  if (!inside) return;
  const int thread = lane % 2 * 2 + lane / 2 % 2;
  const long long block = (row * out.vectors + vector) / 8;
  *reinterpret_cast<uint2*>(out.values + block * 16 + thread * 4 + lane / 4 % 2 * 2) = both;
  if (lane % 16 == 0) out.scales[vector / 16 * out.scale_stride + row] = largest / kMaxFp8;
}

// --- existing rows, and gated activations --------------------------------------------------------

// What a thread reads of existing rows. kAligned: rows begin at multiples of 16 bytes.
template <typename T, bool kAligned>
struct PlainRows {
  using Element = T;
  const T* x;
  long long stride;

  struct Loaded {
    Vector<T> vector;
    __device__ __forceinline__ Vector<T> value() const { return vector; }
  };
  __device__ __forceinline__ Loaded load(long long row, int vector, int /*vectors*/) const {
    const T* const from = x + row * stride + vector * 8;
    if constexpr (kAligned) return {load_vector_once(from)};
    return {load_elements(from, 8)};
  }
};

// And of rows of gate values, then up values. Dense.
template <typename T, Activation kActivation>
struct ActivatedRows {
  using Element = T;
  const T* x;

  struct Loaded {
    Vector<T> gates, ups;
    __device__ __forceinline__ Vector<T> value() const {
      return activate_gated<kActivation>(gates, ups);
    }
  };
  __device__ __forceinline__ Loaded load(long long row, int vector, int vectors) const {
    const T* const from = x + (row * 2 * vectors + vector) * 8;
    return {load_vector_once(from), load_vector_once(from + static_cast<long long>(vectors) * 8)};
  }
};

// kVectors: per thread.
template <int kVectors, typename Rows>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const Rows rows, const Fp8Out out, int count, bool trigger_early) {
  pdl_begin(trigger_early);
  typename Rows::Loaded loaded[kVectors] = {};
  int row[kVectors], vector[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const unsigned i = (blockIdx.x * kVectors + v) * kThreads + threadIdx.x;
    row[v] = static_cast<int>(i / out.vectors), vector[v] = static_cast<int>(i % out.vectors);
    if (row[v] < count) loaded[v] = rows.load(row[v], vector[v], out.vectors);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    store_fp8<typename Rows::Element>(out, row[v], vector[v], loaded[v].value(), row[v] < count);
}

template <typename Rows>
void launch(const Rows& rows, std::int64_t count, const Fp8Out& out, cudaStream_t stream,
            bool trigger_early) {
  const long long vectors = count * out.vectors;
  NVLLM_CHECK(vectors < 1ll << 31, vectors, " vectors of rows to be made fp8");
  const auto launch_some = [&]<int kVectors>() {
    launch_with_pdl("launching quantize_rows", quantize_kernel<kVectors, Rows>,
                    dim3(blocks_for(vectors, kThreads * kVectors)), dim3(kThreads), stream, rows,
                    out, static_cast<int>(count), trigger_early);
  };
  vectors < kManyVectors ? launch_some.template operator()<1>()
                         : launch_some.template operator()<2>();
}

// --- norms ---------------------------------------------------------------------------------------

template <typename T>
struct NormParams {
  const T* x;
  const T* weight;
  Fp8Out out;
  int rows;
  float inverse_columns, epsilon, weight_offset;
  bool trigger_early;
};

// Like rms_norm_kernel (pointwise/sm80/rmsnorm.cu): blockDim.x threads per row, V vectors each,
// blockDim.y rows per block.
template <typename T, int V, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads) quantize_normed_kernel(const NormParams<T> p) {
  pdl_begin(p.trigger_early);
  constexpr int kScratch = rms_norm_slots(V * kMaxThreads / 32) + kMaxThreads / 32 * 4;
  alignas(16) __shared__ float scratch[kScratch];
  const int row = blockIdx.x * blockDim.y + threadIdx.y, step = blockDim.x;
  const int first = threadIdx.x, vectors = p.out.vectors;
  const bool exists = row < p.rows;
  const T* const from = p.x + static_cast<long long>(row) * vectors * 8;
  Vector<T> x[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int vector = first + v * step;
    if (exists && vector < vectors) x[v] = load_vector_once(from + vector * 8);
  }
  const float scale = rms_norm_scale(x, first, step, p.inverse_columns, p.epsilon,
                                     scratch + threadIdx.y * rms_norm_slots(V * step / 32));
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int vector = first + v * step;
    const bool inside = exists && vector < vectors;
    Vector<T> weight{};
    if (inside) weight = load_vector(p.weight + vector * 8);
    store_fp8(p.out, row, vector, rms_norm_apply(x[v], scale, weight, p.weight_offset), inside);
  }
}

template <typename T, int V, int kMaxThreads>
void launch(const NormParams<T>& p, cudaStream_t stream) {
  constexpr int kBlockThreads = 128;  // about this many, if rows are short
  const int threads = ((p.out.vectors + V - 1) / V + 31) / 32 * 32;
  const int rows = threads < kBlockThreads ? kBlockThreads / threads : 1;
  launch_with_pdl("launching quantize_normed_rows", quantize_normed_kernel<T, V, kMaxThreads>,
                  dim3(blocks_for(p.rows, rows)), dim3(threads, rows), stream, p);
}

constexpr int kMaxNormVectors = 8 * 512;

// Calls function with an element of a 16-bit type.
template <typename Function>
void with_half_type(DType type, const Function& function) {
  type == DType::bf16 ? function(Bf16{}) : function(F16{});
}

}  // namespace

void quantize_rows(const TensorView& x, const Fp8Rows& out, Stream& stream, bool trigger_early) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  const Fp8Out to(out, x.shape[1]);
  const bool aligned = x.aligned(16) && x.stride[0] % 8 == 0;
  with_half_type(x.dtype, [&]<typename T>(T) {
    const T* const from = x.as<const T>();
    aligned ? launch(PlainRows<T, true>{from, x.stride[0]}, x.shape[0], to, native, trigger_early)
            : launch(PlainRows<T, false>{from, x.stride[0]}, x.shape[0], to, native, trigger_early);
  });
}

bool makes_fp8_rows(const RmsNorm& norm) {
  return norm.x.dtype != DType::f32 && norm.residual.data == nullptr && norm.x.aligned(16) &&
         norm.weight.aligned(16) && norm.x.shape[1] % kFp8Group == 0 &&
         norm.x.shape[1] / 8 <= kMaxNormVectors;
}

bool makes_fp8_rows(const GatedActivation& activation) {
  return activation.x.dtype != DType::f32 && activation.x.aligned(16) &&
         activation.x.shape[1] / 2 % kFp8Group == 0 &&
         activation.activation != Activation::clamped_swiglu;
}

void quantize_normed_rows(const RmsNorm& norm, const Fp8Rows& out, Stream& stream,
                          bool trigger_early) {
  const std::int64_t columns = norm.x.shape[1];
  with_half_type(norm.x.dtype, [&]<typename T>(T) {
    const NormParams<T> p{norm.x.as<const T>(),
                          norm.weight.as<const T>(),
                          Fp8Out(out, columns),
                          static_cast<int>(norm.x.shape[0]),
                          1.0f / static_cast<float>(columns),
                          norm.epsilon,
                          norm.weight_offset,
                          trigger_early};
    const cudaStream_t native = nvllm::cuda::native(stream);
    const bool few = static_cast<long long>(p.rows) * p.out.vectors < kManyVectors;
    if (few && p.out.vectors <= 2 * kRmsNormMaxThreads) {
      return launch<T, 2, kRmsNormMaxThreads>(p, native);
    }
    p.out.vectors <= 4 * 256 ? launch<T, 4, 256>(p, native) : launch<T, 8, 512>(p, native);
  });
}

void quantize_activated_rows(const GatedActivation& activation, const Fp8Rows& out, Stream& stream,
                             bool trigger_early) {
  const Fp8Out to(out, activation.x.shape[1] / 2);
  const cudaStream_t native = nvllm::cuda::native(stream);
  with_half_type(activation.x.dtype, [&]<typename T>(T) {
    const T* const x = activation.x.as<const T>();
    const auto launch_as = [&]<Activation kActivation>() {
      launch(ActivatedRows<T, kActivation>{x}, activation.x.shape[0], to, native, trigger_early);
    };
    switch (activation.activation) {
      case Activation::gelu: return launch_as.template operator()<Activation::gelu>();
      case Activation::gelu_tanh: return launch_as.template operator()<Activation::gelu_tanh>();
      default: return launch_as.template operator()<Activation::silu>();
    }
  });
}

}  // namespace nvllm::kernels::cuda
