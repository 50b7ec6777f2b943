// all_reduce, residual sum and RMSNorm in one kernel: one block per row, with the threads and the
// order of kernels/cuda/rmsnorm.cuh, so that the bits are those of the two kernels one after the
// other.
//
// What takes time is the trip to the peers. So: send the row first, load what the norm needs and
// settle the bookkeeping while the data travels, wait, sum, normalise.
#include "ipc/collective/peer_kernels.h"
#include "ipc/collective/peer_launch.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr int kVectors = 2;       // a thread's, see rms_norm_threads()
constexpr int kFewThreads = 512;  // enough for rows of 16 KiB
constexpr int kMaxVectors = kVectors * kernels::kRmsNormMaxThreads;  // a row's: 32 KiB

template <typename T>
struct Params {
  T* out;
  const T* x;
  T* residual;  // nullptr: none
  const T* weight;
  int columns;
  int vectors;  // of a row
  float inverse_columns;
  float epsilon;
};

// kMaxThreads bounds the block, and so sets how many registers there are.
template <typename T, int kMaxRanks, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_kernel(const __grid_constant__ Links links, const Params<T> p) {
  constexpr int kElements = Vector<T>::kElements;
  alignas(16) __shared__ float scratch[kVectors * kMaxThreads / 32];
  const int first = threadIdx.x;
  const int step = blockDim.x;
  const std::int64_t row = blockIdx.x;
  const std::int64_t start = row * p.columns;
  const std::size_t row_word = row * p.vectors;
  const std::size_t words = std::size_t{gridDim.x} * p.vectors;

  const Call call = begin(links);
  Vector<T> x[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector < p.vectors) x[v] = kernels::load_vector(p.x + start + vector * kElements);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector < p.vectors) {
      send_to_all<kMaxRanks>(links, call, row_word + vector, words, to_word(x[v]));
    }
  }

  Vector<T> weight[kVectors] = {};
  Vector<T> residual[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector >= p.vectors) continue;
    weight[v] = kernels::load_vector(p.weight + vector * kElements);
    if (p.residual != nullptr) {
      residual[v] = kernels::load_vector(p.residual + start + vector * kElements);
    }
  }
  advance(links, call);

  uint4* const inbox = box(links, call, links.rank) + row_word;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector >= p.vectors) continue;
    x[v] = receive_sum<T, kMaxRanks>(links, call, inbox + vector, words, x[v]);
    if (p.residual != nullptr) {
      x[v] = kernels::add(residual[v], x[v]);
      kernels::store_vector(p.residual + start + vector * kElements, x[v]);
    }
  }
  const float scale = kernels::rms_norm_scale(x, first, step, p.inverse_columns, p.epsilon, scratch);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector < p.vectors) {
      kernels::store_vector(p.out + start + vector * kElements,
                            kernels::rms_norm_apply(x[v], scale, weight[v]));
    }
  }
}

}  // namespace

bool launch_one_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                              cudaStream_t stream) {
  const std::int64_t rows = args.x.shape[0];
  const std::int64_t row_bytes = args.x.shape[1] * static_cast<std::int64_t>(size_of(args.x.dtype));
  const std::int64_t vectors = row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  if (vectors < 1 || vectors > kMaxVectors ||
      row_bytes % static_cast<std::int64_t>(sizeof(uint4)) != 0) {
    return false;
  }
  for (const TensorView* tensor : {&args.out, &args.x, &args.weight, &args.residual}) {
    if (!tensor->aligned(sizeof(uint4))) return false;
  }
  const int threads = kernels::rms_norm_threads(static_cast<int>(vectors));
  // All blocks must be able to run at once: a multiprocessor holds one of the largest.
  const int block_limit = threads <= kFewThreads ? kFewThreads : kernels::kRmsNormMaxThreads;
  const std::int64_t most_rows = std::int64_t{links.multiprocessors} * (block_limit / threads);
  if (rows < 1 || rows > most_rows ||
      static_cast<std::size_t>(rows * row_bytes) > one_shot_limit(links.ranks)) {
    return false;
  }
  dispatch(args.x.dtype, links.ranks, [&]<typename T, int kMaxRanks>() {
    const Params<T> p{args.out.as<T>(),
                      args.x.as<T>(),
                      args.residual.as<T>(),
                      args.weight.as<T>(),
                      static_cast<int>(args.x.shape[1]),
                      static_cast<int>(vectors),
                      1.0f / static_cast<float>(args.x.shape[1]),
                      args.epsilon};
    const auto kernel = threads <= kFewThreads
                            ? rms_norm_kernel<T, kMaxRanks, kFewThreads>
                            : rms_norm_kernel<T, kMaxRanks, kernels::kRmsNormMaxThreads>;
    kernel<<<static_cast<unsigned>(rows), threads, 0, stream>>>(links, p);
  });
  cuda::check(cudaGetLastError(), "launching the fused all_reduce and rms_norm");
  return true;
}

}  // namespace nvllm::ipc::peer
