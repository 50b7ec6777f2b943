// Attention kernels for heads of 257 to 512 elements, for Ampere and later, their launchers and the
// kernel selection, for the files that compile them for one cache type each. Everything is in an
// unnamed namespace. The comments of attention_launch.cuh apply here, too; there are no Hopper
// versions.
#pragma once

#include "kernels/attention/sm80/attention_launch.cuh"
#include "kernels/attention/sm80/hdim512.cuh"

namespace nvllm::kernels::cuda {
namespace {

// Blocks of 32 packed rows fit into the shared memory of every GPU since Ampere.
constexpr int kPrefillGroups = 2;

// The grid is that of prefill_kernel.
template <typename T, bool kWindow>
__global__ void __launch_bounds__(hdim512::kThreads<kPrefillGroups>, 2)
    hdim512_prefill_kernel(const AttentionParams<T> p) {
  using namespace hdim512;
  extern __shared__ __align__(256) unsigned char shared[];
  const RowBlock block = find_row_block(p, static_cast<int>(blockIdx.y),
                                        static_cast<int>(blockIdx.x), kPrefillGroups * kRows);
  if (block.sequence < 0) return;
  const AttentionPart<T, kWindow> part(p, block.sequence, blockIdx.y);
  const Place place;
  Rows<T> rows(0, 0, place.lane, p.score_scale(part.kv_head));
  const Tiles tiles = tiles_of<T, kPrefillGroups>(part, block.first_row);
  add_tokens<T, kPrefillGroups>(part, block.first_row, tiles, shared, place, rows);
  write_rows<T>(part, block.first_row + place.group * kRows, place, rows);
}

template <typename T, bool kWindow>
void hdim512_prefill(const Attention& args, cudaStream_t stream) {
  using namespace hdim512;
  const AttentionParams<T> p(args);
  const dim3 blocks(
      static_cast<unsigned>(p.max_row_blocks(args.q.shape[0], kPrefillGroups * kRows)),
      p.kv_heads());
  const auto kernel = hdim512_prefill_kernel<T, kWindow>;
  constexpr int kBytes = kSharedBytes<T, kPrefillGroups>;
  allow_shared_memory(kernel, kBytes, "preparing attention");
  kernel<<<blocks, kThreads<kPrefillGroups>, kBytes, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

// Stores a warp's rows and columns into a partial result.
template <typename T>
__device__ __forceinline__ void store_slice(const hdim512::Rows<T>& rows,
                                            const hdim512::Place& place,
                                            decode::WarpPartial<hdim512::kHeadDim>& to) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = place.lane / 4 + 8 * i;
#pragma unroll
    for (int n = 0; n < hdim512::kSlice / 8; ++n) {
      const int column = place.slice * hdim512::kSlice + rows.column(n);
      *reinterpret_cast<float2*>(&to.out[row][column]) =
          make_float2(rows.out[n][2 * i], rows.out[n][2 * i + 1]);
    }
    if (place.slice == 0 && place.lane % 4 == 0) {
      to.row_max[row] = rows.row_max[i], to.sum[row] = rows.sum[i];
    }
  }
}

// A block has 16 packed rows of a sequence, and the blocks of a cluster share the tokens.
template <typename T, bool kWindow>
__global__ void __launch_bounds__(hdim512::kThreads<1>)
    hdim512_decode_kernel(const AttentionParams<T> p) {
  using namespace hdim512;
  extern __shared__ __align__(256) unsigned char shared[];
  const AttentionPart<T, kWindow> part(p, blockIdx.z, blockIdx.y);
  const int blocks = decode::cluster_blocks();
  const int rank = static_cast<int>(blockIdx.x) % blocks;
  const int first_row = static_cast<int>(blockIdx.x) / blocks * kRows;
  if (first_row >= part.packed_rows) return;  // all blocks of the cluster return here
  const Place place;
  Rows<T> rows(0, 0, place.lane, p.score_scale(part.kv_head));
  const Tiles all = tiles_of<T, 1>(part, first_row);
  const long long count = all.end - all.first;
  const Tiles own{all.first + static_cast<int>(count * rank / blocks),
                  all.first + static_cast<int>(count * (rank + 1) / blocks)};
  add_tokens<T, 1>(part, first_row, own, shared, place, rows);
  if (blocks == 1) return write_rows<T>(part, first_row, place, rows);

  rows.finish(p.value_scale(part.kv_head));
  __syncthreads();  // the partial results overwrite the tiles
  static_assert(sizeof(decode::WarpPartial<kHeadDim>) <= kSharedBytes<T, 1>);
  auto& partial = *reinterpret_cast<decode::WarpPartial<kHeadDim>*>(shared);
  store_slice<T>(rows, place, partial);
  decode::synchronize_cluster(blocks);
  decode::combine_blocks<T, kHeadDim, kThreads<1>>(part, first_row, partial, rank, blocks);
  decode::synchronize_cluster(blocks);  // no block may exit while others read its result
}

template <typename T, bool kWindow>
void hdim512_decode(const Attention& args, cudaStream_t stream) {
  using namespace hdim512;
  decode::launch_blocks(hdim512_decode_kernel<T, kWindow>,
                        decode::BlockShape{kThreads<1>, kSharedBytes<T, 1>},
                        AttentionParams<T>(args), args.max_query_rows, args.kv_length.shape[0],
                        max_tokens_seen(args), stream);
}

template <typename T>
void hdim512_on_tensor_cores(const Attention& args, cudaStream_t stream) {
  const bool few = args.max_query_rows * std::min(args.group, args.q.shape[1]) <= kDecodeRows;
  with_window(args, [&]<bool kWindow>() {
    if (few && !args.invariant) return hdim512_decode<T, kWindow>(args, stream);
    hdim512_prefill<T, kWindow>(args, stream);
  });
}

template <typename T>
void hdim512_float32(const Attention& args, cudaStream_t stream) {
  attention_float32<T, hdim512::kHeadDim / 32>(args, stream);
}

}  // namespace
}  // namespace nvllm::kernels::cuda
