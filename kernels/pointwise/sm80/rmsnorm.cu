// RMSNorm on the GPU: one group of threads per row (kernels/pointwise/sm80/rmsnorm.cuh), several
// rows per block if rows are short. Memory-bound: every element is read once and written once.
//
// A block loads nothing while it sums its squares. So with many rows threads hold many vectors, all
// in flight together, in small blocks, some of which load while others sum; with few rows threads
// hold two, for the shortest latency from the first load to the last store.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda {
namespace {

// A block has about this many threads if its rows are short.
constexpr int kBlockThreads = 128;

// Fewer threads than this all fit on a large GPU at once.
constexpr long long kManyThreads = 264 * 256;

template <typename T>
struct Params {
  T* out;
  const T* x;
  T* residual;  // nullptr: none
  const T* weight;
  long long rows;
  int columns;
  int vectors;  // of a row
  float inverse_columns;
  float epsilon, weight_offset;
  bool trigger_early;
};

// Vector number `vector` of the row that starts at `row`. kOnce: it is not read again.
template <bool kAligned, bool kOnce, typename T>
__device__ __forceinline__ Vector<T> load(const Params<T>& p, const T* row, int vector) {
  constexpr int kElements = Vector<T>::kElements;
  if (vector >= p.vectors) return Vector<T>{};
  if constexpr (kAligned && kOnce) return load_vector_once(row + vector * kElements);
  if constexpr (kAligned) return load_vector(row + vector * kElements);
  return load_elements(row + vector * kElements, p.columns - vector * kElements);
}

template <bool kAligned, typename T>
__device__ __forceinline__ void store(const Params<T>& p, T* row, int vector,
                                      const Vector<T>& value) {
  constexpr int kElements = Vector<T>::kElements;
  if (vector >= p.vectors) return;
  if constexpr (kAligned) {
    store_vector(row + vector * kElements, value);
  } else {
    store_elements(row + vector * kElements, value, p.columns - vector * kElements);
  }
}

// blockDim.x threads per row, blockDim.y rows per block. V: vectors per thread. kThreads: max. per
// block. kAligned: all rows start at multiples of 16 bytes and consist of whole vectors.
template <typename T, int V, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const Params<T> p) {
  pdl_begin(p.trigger_early);
  // One part per group, in blocks of one large group or of several small ones.
  constexpr int kScratch = rms_norm_slots(V * kThreads / 32) + kBlockThreads / 32 * 4;
  alignas(16) __shared__ float scratch[kScratch];
  // With few rows the weights are loaded while the row's sum is computed.
  constexpr bool kWeightsEarly = V <= 2;

  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside =
      row < p.rows;  // the block's last rows may not exist, but take part in its barriers
  const long long start = row * p.columns;
  const int first = threadIdx.x;
  const int step = blockDim.x;

  Vector<T> x[V] = {};
  Vector<T> weight[kWeightsEarly ? V : 1] = {};
  if (inside) {
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = load<kAligned, true>(p, p.x + start, first + v * step);
    if constexpr (kWeightsEarly) {
#pragma unroll
      for (int v = 0; v < V; ++v) weight[v] = load<kAligned, false>(p, p.weight, first + v * step);
    }
    if (p.residual != nullptr) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        x[v] = add(load<kAligned, true, T>(p, p.residual + start, first + v * step), x[v]);
        store<kAligned>(p, p.residual + start, first + v * step, x[v]);
      }
    }
  }
  const float scale = rms_norm_scale(x, first, step, p.inverse_columns, p.epsilon,
                                     scratch + threadIdx.y * rms_norm_slots(V * step / 32));
  if (!inside) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    Vector<T> w;
    if constexpr (kWeightsEarly) {
      w = weight[v];
    } else {
      w = load<kAligned, false>(p, p.weight, first + v * step);
    }
    store<kAligned>(p, p.out + start, first + v * step,
                    rms_norm_apply(x[v], scale, w, p.weight_offset));
  }
}

template <typename T, int V, int kThreads, bool kAligned>
void launch(const Params<T>& p, cudaStream_t stream) {
  const int threads = ((p.vectors + V - 1) / V + 31) / 32 * 32;
  const int rows_per_block = threads < kBlockThreads ? kBlockThreads / threads : 1;
  launch_with_pdl("launching rms_norm", rms_norm_kernel<T, V, kThreads, kAligned>,
                  blocks_for(p.rows, rows_per_block), dim3(threads, rows_per_block), stream, p);
}

template <typename T>
void launch(const RmsNorm& args, bool trigger_early, cudaStream_t stream) {
  Params<T> p;
  p.out = args.out.as<T>();
  p.x = args.x.as<T>();
  p.residual = args.residual.as<T>();
  p.weight = args.weight.as<T>();
  p.rows = args.x.shape[0];
  p.columns = static_cast<int>(args.x.shape[1]);
  p.vectors = rms_norm_vectors(p.columns, sizeof(T));
  p.inverse_columns = 1.0f / static_cast<float>(p.columns);
  p.epsilon = args.epsilon;
  p.weight_offset = args.weight_offset;
  p.trigger_early = trigger_early;

  const bool aligned = p.columns % Vector<T>::kElements == 0 && args.out.aligned(16) &&
                       args.x.aligned(16) && args.weight.aligned(16) && args.residual.aligned(16);
  const bool two_suffice = p.vectors <= 2 * kRmsNormMaxThreads;
  const bool few = p.rows * p.vectors < 4 * kManyThreads;
  if (!aligned) {
    return two_suffice ? launch<T, 2, kRmsNormMaxThreads, false>(p, stream)
                       : launch<T, 16, kRmsNormMaxThreads, false>(p, stream);
  }
  if (few && two_suffice) return launch<T, 2, kRmsNormMaxThreads, true>(p, stream);
  if (p.vectors <= 4 * 256) return launch<T, 4, 256, true>(p, stream);
  if (p.vectors <= 8 * 256) return launch<T, 8, 256, true>(p, stream);
  if (p.vectors <= 16 * 512) return launch<T, 16, 512, true>(p, stream);
  launch<T, 16, kRmsNormMaxThreads, true>(p, stream);
}

}  // namespace

void rms_norm(const RmsNorm& args, Stream& stream, bool trigger_early) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    launch<T>(args, trigger_early, nvllm::cuda::native(stream));
  });
}

}  // namespace nvllm::kernels::cuda
