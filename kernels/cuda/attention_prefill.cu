// Attention of many query rows per sequence: a block has 64 packed rows of a sequence and a KV head, 16 per
// warp, and goes through the tokens that the last of them sees, tile by tile. While one tile is worked on,
// the next one is on its way.
#include "device/cuda/stream.h"
#include "kernels/cuda/attention_tile.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = kWarps * 16;

// Tokens of a tile: longer heads leave registers and shared memory for fewer.
template <int D>
constexpr int kTokens = D <= 128 ? 64 : 32;

template <int D>
constexpr int kQueryBytes = kRows* D * 2;
template <int D>
constexpr int kTileBytes = kTokens<D>* D * 2;
template <int D>
constexpr int kSharedBytes = kQueryBytes<D> + 4 * kTileBytes<D>;

template <typename T, int D>
__global__ void __launch_bounds__(kWarps * 32) prefill_kernel(const AttentionParams<T> p) {
  constexpr int kWarpTokens = kTokens<D> / kWarps;
  extern __shared__ __align__(128) unsigned char shared[];
  const RowBlock block =
      find_row_block<kRows>(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  if (block.sequence < 0) return;
  const AttentionPart<T> part(p, block.sequence, blockIdx.y);
  const int block_row = block.first_row;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = block_row + warp * 16;
  const int tokens = max(0, part.visible(min(block_row + kRows, part.packed_rows) - 1));
  const int tiles = (tokens + kTokens<D> - 1) / kTokens<D>;

  const unsigned queries = shared_address(shared);
  const auto keys_of = [&](int tile) {
    return queries + kQueryBytes<D> + tile % 2 * 2 * kTileBytes<D>;
  };
  const auto copy_tile = [&](int tile) {
    const unsigned keys = keys_of(tile);
    copy_tokens<D, kWarpTokens>(part, tile * kTokens<D> + warp * kWarpTokens, keys,
                                keys + kTileBytes<D>, warp * kWarpTokens, lane);
    commit_copies();
  };
  if (tiles > 0) {
    copy_queries<D>(part, row, queries, warp * 16, lane);
    copy_tile(0);
  }
  WarpRows<T, D, kTokens<D>> rows(queries, warp * 16, lane, p.scale);
  // What rows see that do not exist does not matter.
  const int visible[2] = {part.visible(row + lane / 4), part.visible(row + lane / 4 + 8)};
  const int least = part.visible(row), most = part.visible(row + 15);
  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and all are done with the one before it
    if (tile == 0) rows.start();
    if (tile + 1 < tiles) copy_tile(tile + 1);
    const int first = tile * kTokens<D>;
    if (first < most) {
      rows.add(keys_of(tile), keys_of(tile) + kTileBytes<D>, first, first + kTokens<D> > least,
               visible);
    }
  }
  rows.finish();

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed_row = row + lane / 4 + 8 * i;
    if (packed_row >= part.packed_rows) break;
    const long long index = part.index(packed_row);
    const float factor = rows.sum[i] == 0 ? 0.0f : 1 / rows.sum[i];
    const long long to = index * p.head_dim + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      if (n * 8 < p.head_dim) {
        p.store(to + n * 8, rows.out[n][2 * i] * factor, rows.out[n][2 * i + 1] * factor);
      }
    }
    if (p.lse != nullptr && lane % 4 == 0) {
      p.lse[index] = log_sum_exp(rows.highest[i], rows.sum[i]);
    }
  }
}

template <int D, typename T>
void launch(const Attention& args, const AttentionParams<T>& p, cudaStream_t stream) {
  const auto kernel = prefill_kernel<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing attention");
  const dim3 blocks(static_cast<unsigned>(p.most_row_blocks(args.q.shape[0], kRows)), p.kv_heads());
  kernel<<<blocks, kWarps * 32, kSharedBytes<D>, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

}  // namespace

template <typename T>
void attention_prefill(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  if (p.head_dim <= 64) return launch<64>(args, p, stream);
  if (p.head_dim <= 128) return launch<128>(args, p, stream);
  launch<256>(args, p, stream);
}

template void attention_prefill<Bf16>(const Attention& args, cudaStream_t stream);
template void attention_prefill<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
