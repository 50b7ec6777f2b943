// all_reduce, residual sum and RMSNorm in one kernel (one-shot). It adds in the order of
// kernels/pointwise/sm80/rmsnorm.cuh, so that the bits are those of two separate kernels.
//
// The latency to the peers dominates. So the kernel sends the row first, loads the norm's operands
// and updates the call number while the data is in flight, then waits, sums and normalizes.
//
// A row belongs to a cluster of blocks, one vector per thread: several multiprocessors put it onto
// the links faster than one. Without cluster support, or with more rows than clusters fit, it
// belongs to one block, with two or four vectors per thread.
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/peer_launch.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr int kMaxThreads = 512;    // per block: leaves 128 registers per thread
constexpr int kMaxClusterLog2 = 2;  // 8 blocks are no faster than 4

template <typename T>
struct Params : NormParams<T> {
  int cluster_log2;  // blocks per row
};

// --- chunk sums across a cluster
// -------------------------------------------------------------------

// Only for clusters of two or more blocks; others have no remote shared memory, where a push is an
// illegal instruction.
//
// The chunk sums of the whole row are pushed into the shared memory of each block, which waits for
// their bytes, so there are no read requests. A block ends only when everything addressed to it has
// arrived: so no block writes to the shared memory of a block that has exited, and no barrier at
// the end is needed. Pushed data no longer needs the block that pushed it. Every chunk is pushed in
// every call, even a failed one.
struct Gathered {
  alignas(16) float sums[kMaxChunks];
  alignas(8) unsigned long long arrived;  // an mbarrier
};

[[maybe_unused]] __device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Call with all threads, at the start.
__device__ __forceinline__ void open_exchange(Gathered& gathered, int chunks) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    const unsigned barrier = shared_address(&gathered.arrived);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(chunks * static_cast<int>(sizeof(float)))
                 : "memory");
  }
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

// Call with all threads before the first push: waits until all blocks have opened the exchange.
__device__ __forceinline__ void await_opened() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Call with all lanes of a warp, with the same sum.
__device__ __forceinline__ void push_chunk(Gathered& gathered, int chunk, float sum, int blocks) {
#if __CUDA_ARCH__ >= 900
  const int block = threadIdx.x % 32;
  if (block >= blocks) return;
  unsigned place, barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(place)
      : "r"(shared_address(&gathered.sums[chunk])), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(barrier)
      : "r"(shared_address(&gathered.arrived)), "r"(block));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
      "r"(__float_as_uint(sum)), "r"(barrier)
      : "memory");
#endif
}

__device__ __forceinline__ void await_chunks(Gathered& gathered) {
#if __CUDA_ARCH__ >= 900
  unsigned done = 0;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(&gathered.arrived))
        : "memory");
  } while (done == 0);
#endif
}

// --- the kernel
// ------------------------------------------------------------------------------------

// kVectors: per thread. 1: a cluster per row.
template <typename T, int kRanks, int kVectors>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rms_norm_kernel(const __grid_constant__ Links links, const __grid_constant__ Params<T> p) {
  constexpr int kElements = Vector<T>::kElements;
  constexpr bool kCluster = kVectors == 1;
  __shared__ Gathered gathered;
  const int step = blockDim.x;
  const int blocks = kCluster ? 1 << p.cluster_log2 : 1;
  const int part = kCluster ? blockIdx.x & (blocks - 1) : 0;
  const int row = kCluster ? blockIdx.x >> p.cluster_log2 : blockIdx.x;
  const int rows = kCluster ? gridDim.x >> p.cluster_log2 : gridDim.x;
  const int first = part * step + threadIdx.x;
  const std::int64_t start = std::int64_t{row} * p.columns;
  const std::size_t row_word = std::size_t(row) * p.vectors;
  const std::size_t words = std::size_t(rows) * p.vectors;
  const int chunks = kCluster ? (p.vectors + 31) / 32 : kVectors * step / 32;
  const int slots = kernels::rms_norm_slots(chunks);
  // Visible to all threads: advance() contains a barrier.
  if (threadIdx.x < slots - chunks) gathered.sums[chunks + threadIdx.x] = 0;
  const bool pushes = kCluster && blocks > 1;
  if (pushes) open_exchange(gathered, chunks);

  const Call call = begin(links, p);
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
      send_to_all<kRanks>(links, call, row_word + vector, words, to_word(x[v]));
    }
  }

  // Not earlier, because sending the row would wait for these loads as well.
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
  if (pushes) await_opened();

  uint4* const inbox = box(links, call, links.rank) + row_word;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector < p.vectors) {
      x[v] = receive_sum<T, kRanks>(links, call, inbox + vector, words, x[v]);
      if (p.residual != nullptr) {
        x[v] = kernels::add(residual[v], x[v]);
        kernels::store_vector(p.residual + start + vector * kElements, x[v]);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float sum = kernels::rms_norm_chunk(x[v]);
    const int chunk = (first + v * step) / 32;
    if (pushes) {
      if (chunk < chunks) push_chunk(gathered, chunk, sum, blocks);
    } else {
      if (threadIdx.x % 32 == 0) gathered.sums[chunk] = sum;
    }
  }
  if (pushes) {
    await_chunks(gathered);
  } else {
    __syncthreads();
  }
  const float scale = kernels::rms_norm_scale(kernels::rms_norm_add_chunks(gathered.sums, slots),
                                              p.inverse_columns, p.epsilon);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int vector = first + v * step;
    if (vector < p.vectors) {
      kernels::store_vector(p.out + start + vector * kElements,
                            kernels::rms_norm_apply(x[v], scale, weight[v]));
    }
  }
}

// How rows are assigned to blocks.
struct Shape {
  int cluster_log2;
  int threads;
  bool fits;  // all blocks can run concurrently, as they must
};

// One vector per thread. Every block has a chunk, except with unusual row lengths such as 5 chunks.
Shape shape_of_clusters(const Links& links, std::int64_t rows, int vectors) {
  const int chunks = (vectors + 31) / 32;
  int log2 = 0;
  while (log2 < kMaxClusterLog2 && (2 << log2) <= chunks) ++log2;
  const int threads = (chunks + (1 << log2) - 1) / (1 << log2) * 32;
  // A multiprocessor holds at least kMaxThreads. A cluster stays within a group of multiprocessors,
  // some of which remain unused: assume half of them.
  const std::int64_t room = std::int64_t{links.multiprocessors} / 2 * (kMaxThreads / threads);
  return {log2, threads, links.hopper != 0 && rows <= room >> log2};
}

// Two vectors per thread, four in long rows.
Shape shape_of_blocks(const Links& links, std::int64_t rows, int vectors) {
  const int threads = std::min(kernels::rms_norm_threads(vectors), kMaxThreads);
  return {0, threads, rows <= std::int64_t{links.multiprocessors} * (kMaxThreads / threads)};
}

}  // namespace

bool launch_one_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                              cudaStream_t stream) {
  const std::int64_t rows = args.x.shape[0];
  const int vectors = vectors_of(args);
  if (rows < 1 || vectors == 0 || args.x.bytes() > one_shot_limit(links.ranks)) return false;
  const Shape clusters = shape_of_clusters(links, rows, vectors);
  const Shape shape = clusters.fits ? clusters : shape_of_blocks(links, rows, vectors);
  if (!shape.fits) return false;
  const int cluster = 1 << shape.cluster_log2;
  dispatch(args.x.dtype, links.ranks, [&]<typename T, int kRanks>() {
    const Params<T> p{norm_params<T>(args, vectors), shape.cluster_log2};
    const auto kernel = clusters.fits                ? rms_norm_kernel<T, kRanks, 1>
                        : vectors <= 2 * kMaxThreads ? rms_norm_kernel<T, kRanks, 2>
                                                     : rms_norm_kernel<T, kRanks, 4>;
    launch("launching the fused all_reduce and rms_norm", kernel, links,
           dim3(static_cast<unsigned>(rows * cluster)), shape.threads, cluster, stream, p);
  });
  return true;
}

}  // namespace nvllm::ipc::peer
