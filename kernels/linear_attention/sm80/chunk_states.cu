// Processes the chunks of the gated delta rule in order (chunk_delta_rule.cuh): computes states and
// results, including the results' norm and gate. chunk_state_warp.cuh has the state warps.
//
// Only the norm couples columns of values, so work is split by columns. State warps have 16 columns
// each. S^T of these, [16, dk], stays in a warp's registers, as do the chunk's V^T and D^T: the
// result of one GEMM becomes operand A of the next one. Four result warps follow them directly:
// each has 16 of the chunk's tokens and all columns of the block. They receive S and D as operands
// through shared memory; two pairs of barriers per chunk signal when these have been written and
// read.
//
// A block has all 128 columns of a head. If few heads are active, from compute capability 9.0 on, a
// cluster of two blocks splits them, and exchanges the sums of squares that the norm needs.
#include <algorithm>

#include "base/math.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/linear_attention/sm80/chunk_delta_rule.cuh"
#include "kernels/linear_attention/sm80/chunk_state_warp.cuh"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {
namespace chunk_states {
namespace {

// A warp that has 16 tokens of each chunk, and the block's columns of their results.
template <int kOwn>
class ResultWarp {
 public:
  using Memory = Shared<kOwn>;
  static constexpr int kAll = (kOwn + kResultWarps) * 32;
  static constexpr int kSlices = Memory::kSlices;

  // warp: index among the result warps.
  __device__ __forceinline__ ResultWarp(const ChunkParams& p, Memory& shared, int warp)
      : p_(p), shared_(shared), warp_(warp), lane_(static_cast<int>(threadIdx.x) % 32) {
    arrive_at(kStateRead, kAll);
    arrive_at(kChangeRead, kAll);
  }

  __device__ __forceinline__ void run(const Item& item) {
    load(item, 0);
    for (int chunk = 0; chunk < item.chunks(); ++chunk) {
      wait_for_copies<0>();
      __syncwarp();
      const unsigned q = shared_address_of(shared_.q[warp_][stage_]);
      stage_ ^= 1;
      if (chunk + 1 < item.chunks()) load(item, chunk + 1);
      step(item, chunk, q);
    }
  }

 private:
  __device__ __forceinline__ void load(const Item& item, int chunk) const {
    const long long first = item.row(chunk) + warp_ * 16;
#pragma unroll
    for (int i = lane_; i < 16 * kPieces; i += 32) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool inside = first + row < item.end;
      const Bf16* const from =
          p_.q(inside ? first + row : item.begin, item.head / p_.group) + piece * 8;
      copy_chunk(shared_address_of(&shared_.q[warp_][stage_][piece_of<kPieces>(row, piece)]), from,
                 inside);
    }
    commit_copies();
  }

  __device__ __forceinline__ void step(const Item& item, int chunk, unsigned q) {
    const ChunkFactors& factors = item.factors(p_, chunk);
    Fragment a[kChunkBlocks];
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      if (block <= warp_) a[block] = factors.a[lower_block(warp_, block)][lane_];
    }
    const float scale[2] = {factors.q_scale[warp_ * 16 + lane_ / 4],
                            factors.q_scale[warp_ * 16 + lane_ / 4 + 8]};
    const long long row = item.row(chunk) + warp_ * 16 + lane_ / 4;
    Gates gates;
    load(gates, item, row);
    if (chunk + 1 < item.chunks()) prefetch(item, chunk + 1);
    float o[2 * kOwn][4]{};
    sync_threads(kStateThere, kAll);
#pragma unroll
    for (int i = 0; i < kKeyBlocks; ++i) {
      const Quad of_q = load_block<kPieces>(q, 0, i, lane_);
#pragma unroll
      for (int tile = 0; tile < kOwn; ++tile) {
        multiply_add_pair(o[2 * tile], o[2 * tile + 1], of_q, quad_of(shared_.s[tile][i][lane_]));
      }
    }
    arrive_at(kStateRead, kAll);
#pragma unroll
    for (int tile = 0; tile < 2 * kOwn; ++tile) {
      o[tile][0] *= scale[0], o[tile][1] *= scale[0], o[tile][2] *= scale[1],
          o[tile][3] *= scale[1];
    }
    sync_threads(kChangeThere, kAll);
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      if (block > warp_) continue;
#pragma unroll
      for (int tile = 0; tile < kOwn; ++tile) {
        multiply_add_pair(o[2 * tile], o[2 * tile + 1], quad_of(a[block]),
                          quad_of(shared_.d[tile][block][lane_]));
      }
    }
    arrive_at(kChangeRead, kAll);
    norm_and_gate(item, row, o, gates);
  }

  // A lane's two rows, 8 apart; pairs of columns.
  struct Gates {
    unsigned z[2][2 * kOwn];
  };
  __device__ __forceinline__ int first_column(const Item& item) const {
    return item.slice * kOwn * 16 + lane_ % 4 * 2;
  }
  __device__ __forceinline__ void load(Gates& gates, const Item& item, long long row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at = row + half * 8;
      const Bf16* const z = p_.z + (at < item.end ? at : item.begin) * p_.z_stride +
                            item.head * kChunkDim + first_column(item);
#pragma unroll
      for (int tile = 0; tile < 2 * kOwn; ++tile) {
        gates.z[half][tile] = *reinterpret_cast<const unsigned*>(z + tile * 8);
      }
    }
  }

  // Prefetches the data of step() into the L2 cache, 128 bytes per lane.
  __device__ __forceinline__ void prefetch(const Item& item, int chunk) const {
    const auto line = [](const void* at) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
    };
    const long long row = item.row(chunk) + warp_ * 16 + lane_ % 16;
    const int half = lane_ / 16 * 64;
    if (row < item.end && half < kOwn * 16) {
      line(p_.z + row * p_.z_stride + item.head * kChunkDim + item.slice * kOwn * 16 + half);
    }
    const ChunkFactors& factors = item.factors(p_, chunk);
    if (lane_ < 4 * (warp_ + 1)) line(&factors.a[lower_block(warp_, lane_ / 4)][lane_ % 4 * 8]);
  }

  __device__ __forceinline__ void norm_and_gate(const Item& item, long long row,
                                                const float (&o)[2 * kOwn][4], const Gates& gates) {
    const auto* const norms = reinterpret_cast<const float2*>(p_.norm + first_column(item));
    float2 squares{};
#pragma unroll
    for (int tile = 0; tile < 2 * kOwn; ++tile) {
      squares.x = fmaf(o[tile][0], o[tile][0], fmaf(o[tile][1], o[tile][1], squares.x));
      squares.y = fmaf(o[tile][2], o[tile][2], fmaf(o[tile][3], o[tile][3], squares.y));
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      squares.x += __shfl_xor_sync(~0u, squares.x, lanes);
      squares.y += __shfl_xor_sync(~0u, squares.y, lanes);
    }
    squares = sum_of_slices(squares, item.slice);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at = row + half * 8;
      if (at >= item.end) continue;
      const float sum = half == 0 ? squares.x : squares.y;
      const float scale = rsqrtf(fmaf(sum, 1.0f / kChunkDim, p_.epsilon));
      Bf16* const out = p_.out + (at * p_.value_heads + item.head) * kChunkDim + first_column(item);
#pragma unroll
      for (int tile = 0; tile < 2 * kOwn; ++tile) {
        const float2 norm = __ldg(norms + tile * 4);
        const unsigned z = gates.z[half][tile];
        const float low = activate<Bf16, Activation::silu>(__uint_as_float(z << 16));
        const float high = activate<Bf16, Activation::silu>(__uint_as_float(z & 0xffff0000u));
        *reinterpret_cast<unsigned*>(out + tile * 8) =
            pack<Bf16>(o[tile][2 * half] * scale * norm.x * low,
                       o[tile][2 * half + 1] * scale * norm.y * high);
      }
    }
  }

  // The sum for the lane's two rows, including the cluster's other blocks. A block that is one
  // chunk ahead has received this block's sums of the previous chunk, so two buffers suffice.
  __device__ __forceinline__ float2 sum_of_slices(float2 squares, int slice) {
    if constexpr (kSlices > 1) {
#if __CUDA_ARCH__ >= 900
      auto& buffer = shared_.squares[buffer_][warp_];
      const Barrier arrived{shared_address_of(&shared_.arrived[buffer_][warp_])};
      if (lane_ == 0) arrived.arrive_and_expect((kSlices - 1) * 8 * sizeof(float2));
      __syncwarp();
      if (lane_ % 4 == 0) {
        const unsigned to = shared_address_of(&buffer[slice][lane_ / 4]);
#pragma unroll
        for (int i = 1; i < kSlices; ++i) {
          const int other = (slice + i) % kSlices;
          send(address_in(to, other), squares, address_in(arrived.address, other));
        }
      }
      arrived.wait(parity_);
      float2 sum{};
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const float2 part = i == slice ? squares : buffer[i][lane_ / 4];
        sum.x += part.x, sum.y += part.y;
      }
      parity_ ^= buffer_;
      buffer_ ^= 1;
      return sum;
#endif
    }
    return squares;
  }

  const ChunkParams& p_;
  Memory& shared_;
  const int warp_, lane_;
  int stage_ = 0;
  unsigned buffer_ = 0, parity_ = 0;
};

// Each block or cluster processes one item after the other.
template <int kOwn>
__global__ void __launch_bounds__((kOwn + kResultWarps) * 32)
    chunk_states_kernel(const ChunkParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kOwn>*>(memory);
  constexpr int kSlices = Shared<kOwn>::kSlices;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#if __CUDA_ARCH__ >= 900
  if constexpr (kSlices > 1) {
    if (threadIdx.x < 2 * kResultWarps) {
      Barrier{shared_address_of(&shared.arrived[0][0] + threadIdx.x)}.init(1);
      fence_barrier_init();
    }
    sync_cluster();
  }
#endif
  pdl_begin();
  const int items = p.plan[0].x * p.value_heads, step = static_cast<int>(gridDim.x) / kSlices;
  const auto each_item = [&](auto& work) {
    for (int i = static_cast<int>(blockIdx.x) / kSlices; i < items; i += step) {
      const ChunkPlan planned = p.plan[1 + i / p.value_heads];
      work.run(Item{.sequence = planned.x,
                    .head = i % p.value_heads,
                    .first_chunk = planned.y,
                    .slice = static_cast<int>(blockIdx.x) % kSlices,
                    .begin = p.sequences.begin(planned.x),
                    .end = p.sequences.begin(planned.x + 1)});
    }
  };
  if (warp < kOwn) {
    StateWarp<kOwn> work(p, shared);
    each_item(work);
    work.end();
  } else {
    ResultWarp<kOwn> work(p, shared, warp - kOwn);
    each_item(work);
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kSlices > 1) sync_cluster();  // other blocks may still send to this one
#endif
}

template <int kOwn>
void launch(const ChunkParams& p, int max_items, int multiprocessors, cudaStream_t stream) {
  constexpr int kSlices = Shared<kOwn>::kSlices, kBytes = sizeof(Shared<kOwn>);
  nvllm::cuda::check(cudaFuncSetAttribute(chunk_states_kernel<kOwn>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "preparing chunk_states");
  const int blocks = std::min(max_items, multiprocessors / kSlices) * kSlices;
  launch_with_pdl("launching chunk_states", chunk_states_kernel<kOwn>,
                  {.grid = static_cast<unsigned>(blocks),
                   .block = (kOwn + kResultWarps) * 32,
                   .shared_bytes = kBytes,
                   .cluster = kSlices},
                  stream, p);
}

}  // namespace
}  // namespace chunk_states

void launch_chunk_states(const ChunkParams& p, const ChunkBounds& bounds, cudaStream_t stream) {
  const int items = bounds.sequences * p.value_heads;
  const int multiprocessors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const bool few = 2 * items <= multiprocessors;
  constexpr int kTiles = chunk_states::kTiles;
  if (few && has_clusters()) {
    chunk_states::launch<kTiles / 2>(p, items, multiprocessors, stream);
  } else {
    chunk_states::launch<kTiles>(p, items, multiprocessors, stream);
  }
}

}  // namespace nvllm::kernels::cuda
