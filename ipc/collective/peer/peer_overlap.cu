// Kernels of overlapped sums (row_exchange.h): they wait for the data that copy engines transfer,
// sum it, and normalize it.
#include "base/math.h"
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/peer_launch.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr int kMaxThreads = 1024;

__device__ __forceinline__ unsigned look_at(const std::uint32_t* number) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
  return value;
}

// Call with all threads of a block, which has at least as many threads as there are ranks.
// Afterwards they see what the copy engines of all other ranks wrote before their numbers;
// undefined if the wait gave up.
__device__ __forceinline__ void await(const Links& links, const Call& call,
                                      const Arrivals& arrivals) {
  constexpr unsigned kPollsPerLook = 64;
  if (static_cast<int>(threadIdx.x) < links.ranks - 1 && !call.failed) {
    const int sender = sender_at(links.rank, static_cast<int>(threadIdx.x));
    const std::uint32_t* const number = arrivals.numbers + sender * kNumberStride;
    unsigned long long waiting_since = 0;
    for (unsigned polls = 1; look_at(number) != arrivals.expected; ++polls) {
      if (polls % kPollsPerLook != 0) continue;
      waiting_since = look_at_clock(links, call.number, sender, waiting_since);
      if (waiting_since == 0) break;
    }
  }
  __syncthreads();
}

template <typename T>
struct SumParams : NormParams<T> {
  const T* inbox;  // rows of the rank in seat s start at element s * inbox_stride
  std::int64_t inbox_stride;
  Arrivals arrivals;
  int rows;
  std::uint32_t norms;  // 0: `out` is the sum
};

// A block processes whole rows; thread t has the vectors t, t + blockDim.x, ... of each.
template <typename T, int kRanks, int kVectors>
__global__ void __launch_bounds__(kMaxThreads)
    sum_own_rows_kernel(const __grid_constant__ Links links,
                        const __grid_constant__ SumParams<T> p) {
  alignas(16) __shared__ float chunk_sums[2][kMaxChunks];
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int chunks = kVectors * warps;
  const int slots = kernels::rms_norm_slots(chunks);
  if (threadIdx.x < slots - chunks) {  // visible after await(), which contains a barrier
    chunk_sums[0][chunks + threadIdx.x] = chunk_sums[1][chunks + threadIdx.x] = 0;
  }
  const Call call = begin(links, p);
  const auto each = [&](const auto& function) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = static_cast<int>(threadIdx.x + v * blockDim.x);
      if (vector < p.vectors) function(v, std::int64_t{vector} * Vector<T>::kElements);
    }
  };
  Vector<T> weight[kVectors] = {};
  each([&](int v, std::int64_t column) { weight[v] = kernels::load_vector(p.weight + column); });
  await(links, call, p.arrivals);

  int turn = 0;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const std::int64_t begin_of_row = std::int64_t{row} * p.columns;
    Vector<T> sum[kVectors] = {};
    each([&](int v, std::int64_t column) {
      const std::int64_t at = begin_of_row + column;
      uint4 words[kRanks - 1];
#pragma unroll
      for (int seat = 0; seat < kRanks - 1; ++seat) {
        if (seat >= ranks_of<kRanks>(links) - 1) break;
        words[seat] = *reinterpret_cast<const uint4*>(p.inbox + seat * p.inbox_stride + at);
      }
      const Vector<T> own = kernels::load_vector(p.x + at);
      const Vector<T> residual = kernels::load_vector(p.residual + at);
      sum[v] = kernels::add(residual, sum_of<T, kRanks>(links, own, words));
      kernels::store_vector(p.residual + at, sum[v]);
      if (p.norms == 0) kernels::store_vector(p.out + at, sum[v]);
    });
    if (p.norms == 0) continue;
    float* const sums = chunk_sums[turn++ % 2];  // the next row uses the other buffer
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float chunk = kernels::rms_norm_chunk(sum[v]);
      if (threadIdx.x % 32 == 0) sums[v * warps + threadIdx.x / 32] = chunk;
    }
    __syncthreads();
    const float scale = kernels::rms_norm_scale(kernels::rms_norm_add_chunks(sums, slots),
                                                p.inverse_columns, p.epsilon);
    each([&](int v, std::int64_t column) {
      kernels::store_vector(p.out + begin_of_row + column,
                            kernels::rms_norm_apply(sum[v], scale, weight[v]));
    });
  }
}

struct AwaitParams {
  Arrivals arrivals;
};

__global__ void await_kernel(const __grid_constant__ Links links,
                             const __grid_constant__ AwaitParams p) {
  const Call call = begin(links, p);
  await(links, call, p.arrivals);
}

}  // namespace

bool can_sum_rows(const TensorView& row) {
  kernels::RmsNorm args;
  args.x = row;
  return vectors_of(args) != 0;
}

void launch_sum_own_rows(const Links& links, const kernels::RmsNorm& args, const void* inbox,
                         std::int64_t inbox_stride, const Arrivals& arrivals, bool norms,
                         cudaStream_t stream) {
  const int vectors = vectors_of(args);
  const int per_thread = vectors <= kMaxThreads ? 1 : 2;
  const auto threads = static_cast<int>(divide_up(vectors, 32 * per_thread) * 32);
  const auto rows = static_cast<int>(args.x.shape[0]);
  constexpr int kThreadsOfMultiprocessor = 2048;
  // There is one block even without rows: it waits for the other ranks' data.
  const int blocks =
      std::clamp(rows, 1, links.multiprocessors * (kThreadsOfMultiprocessor / threads));
  dispatch(args.x.dtype, links.ranks, [&]<typename T, int kRanks>() {
    const SumParams<T> p{norm_params<T>(args, vectors),
                         static_cast<const T*>(inbox),
                         inbox_stride,
                         arrivals,
                         rows,
                         norms ? 1u : 0u};
    const auto kernel =
        per_thread == 1 ? sum_own_rows_kernel<T, kRanks, 1> : sum_own_rows_kernel<T, kRanks, 2>;
    launch("launching the sum of overlapped rows", kernel, links,
           dim3(static_cast<unsigned>(blocks)), threads, 1, stream, p);
  });
}

void launch_await(const Links& links, const Arrivals& arrivals, cudaStream_t stream) {
  launch("launching a wait for overlapped rows", await_kernel, links, dim3(1), 32, 1, stream,
         AwaitParams{arrivals});
}

}  // namespace nvllm::ipc::peer
