// all_reduce, residual sum and RMSNorm in one kernel of two ranks, where copy engines bring the other's rows, in
// pieces (rows_ahead.h). The bits are those of the other kernels.
//
// A row has a block. Blocks begin in the order of rows, so the first ones find their piece there while the last
// pieces still travel. They wait for nothing but copies, not for each other: there may be more than fit at once.
#include "base/divide.h"
#include "ipc/collective/peer_kernels.h"
#include "ipc/collective/peer_rms_norm.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr int kVectors = 4;  // of a thread, all on their way together
constexpr int kMaxThreads = kMaxVectors / kVectors;

template <typename T>
struct Params : NormParams<T> {
  const T* theirs;
  const std::uint32_t* arrived;
  std::uint32_t call;
  int piece_rows;
};

__device__ __forceinline__ std::uint32_t peek_number(const std::uint32_t* number) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
  return value;
}

// By one thread. What has come is seen by all of the block behind a barrier.
template <typename T>
__device__ __forceinline__ void wait_for(const Links& links, const Call& call, const Params<T>& p,
                                         int piece) {
  constexpr unsigned kTurnsPerLook = 64;
  if (call.failed) return;
  unsigned long long waiting_since = 0;
  // A later number is one of the next call, whose rows come into the other area.
  const auto arrived = [&] {
    return static_cast<int>(peek_number(p.arrived + piece) - p.call) >= 0;
  };
  for (unsigned turn = 1; !arrived(); ++turn) {
    if (turn % kTurnsPerLook != 0) continue;
    waiting_since = look_at_clock(links, p.call, 1 - links.rank, waiting_since);
    if (waiting_since == 0) return;
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    arriving_rms_norm_kernel(const __grid_constant__ Links links,
                             const __grid_constant__ Params<T> p) {
  alignas(16) __shared__ float scratch[kMaxChunks];
  const Call call = begin(links, p);
  const int row = blockIdx.x;
  const std::int64_t start = std::int64_t{row} * p.columns;
  const auto each = [&](const auto& function) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = threadIdx.x + v * blockDim.x;
      if (vector < p.vectors) function(v, vector * Vector<T>::kElements);
    }
  };

  Vector<T> sum[kVectors] = {}, residual[kVectors] = {}, weight[kVectors] = {};
  each([&](int v, int at) {
    sum[v] = kernels::load_vector(p.x + start + at);
    if (p.residual != nullptr) residual[v] = kernels::load_vector(p.residual + start + at);
  });
  if (threadIdx.x == 0) wait_for(links, call, p, row / p.piece_rows);
  __syncthreads();
  each([&](int v, int at) {
    // Past the first cache, which knows nothing of what copy engines write.
    const uint4 word[1] = {__ldcg(reinterpret_cast<const uint4*>(p.theirs + start + at))};
    sum[v] = sum_of<T, 2>(links, sum[v], word);
    if (p.residual == nullptr) return;
    sum[v] = kernels::add(residual[v], sum[v]);
    kernels::store_vector(p.residual + start + at, sum[v]);
  });
  each([&](int v, int at) { weight[v] = kernels::load_vector(p.weight + at); });
  const float scale =
      kernels::rms_norm_scale(sum, threadIdx.x, blockDim.x, p.inverse_columns, p.epsilon, scratch);
  each([&](int v, int at) {
    kernels::store_vector(p.out + start + at, kernels::rms_norm_apply(sum[v], scale, weight[v]));
  });
}

}  // namespace

bool has_arriving_rms_norm(const TensorView& x) {
  kernels::RmsNorm args;
  args.x = x;
  return vectors_of(args) != 0;
}

void launch_arriving_rms_norm(const Links& links, const kernels::RmsNorm& args,
                              const Arriving& arriving, cudaStream_t stream) {
  const int vectors = vectors_of(args);
  dispatch_type(args.x.dtype, [&]<typename T>() {
    const Params<T> p{norm_params<T>(args, vectors), static_cast<const T*>(arriving.theirs),
                      arriving.arrived, arriving.call, arriving.piece_rows};
    launch("launching the rms_norm of arriving rows", arriving_rms_norm_kernel<T>, links,
           dim3(static_cast<unsigned>(args.x.shape[0])),
           static_cast<int>(divide_up(vectors, 32 * kVectors) * 32), 1, stream, p);
  });
}

}  // namespace nvllm::ipc::peer
