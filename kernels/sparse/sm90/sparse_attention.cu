// Sparse attention on Hopper: a block has a tile of 128 rows of a head (attention_block_sm90.cuh), and copies the
// tiles of its list in bulk, or the tokens of its ranges and columns one by one (attention_listed_sm90.cuh).
#include <algorithm>
#include <type_traits>

#include "kernels/attention/sm90/attention_block.cuh"
#include "kernels/attention/sm90/attention_maps.cuh"
#include "kernels/sparse/sm80/sparse_attention.cuh"
#include "kernels/sparse/sm90/attention_listed.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

static_assert(kRows == kSparseTile && kTokens == kSparseTile);

// blockIdx: heads that are near to one another, which read the same keys, tiles of rows, such groups of heads. The last
// rows have the most tokens, and may attend to all of them: those of all heads go first. Then one group of heads goes
// after the other: what is near to its rows is read by all of them at about the same time.
template <typename T>
__device__ __forceinline__ AttentionRows<T> rows_of_block(const AttentionParams<T>& p,
                                                          const SparseLists& lists) {
  constexpr int kLastBlocks = 2;  // tiles of rows that hold a prompt's last 128
  const int together = static_cast<int>(gridDim.x), blocks = static_cast<int>(gridDim.y);
  const int groups = static_cast<int>(gridDim.z), last = min(blocks, kLastBlocks);
  int number = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y), group, block;
  if (number < last * groups) {
    group = number % groups;
    block = blocks - 1 - number / groups;
  } else {
    number -= last * groups;
    group = number / (blocks - last);
    block = blocks - last - 1 - number % (blocks - last);
  }
  return rows_of_head(p, lists, group * together + static_cast<int>(blockIdx.x), block * kRows,
                      kRows);
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    tiles_kernel_sm90(const AttentionParams<T> p, const SparseLists lists,
                      const __grid_constant__ CUtensorMap keys,
                      const __grid_constant__ CUtensorMap values, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const AttentionRows<T> rows = rows_of_block(p, lists);
  if (rows.head_begin >= p.heads) return;
  attend<T, D>(listed(rows, lists, tiles_of(rows, lists)), 0, keys, values, boxes, memory);
#endif
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    ranges_kernel_sm90(const AttentionParams<T> p, const SparseLists lists) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const AttentionRows<T> rows = rows_of_block(p, lists);
  if (rows.head_begin >= p.heads) return;
  attend_listed<T, D>(ListedTokens<T>(rows, ranges_of(rows, lists), columns_of(rows, lists),
                                      lists.first_position + rows.first_row),
                      memory);
#endif
}

template <typename... Params>
void launch(void (*kernel)(Params...), int shared_bytes, const SparseAttention& args,
            cudaStream_t stream, const std::type_identity_t<Params>&... params) {
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "preparing sparse_attention");
  const std::int64_t heads = args.q.shape[1], together = std::min(args.group, heads);
  const dim3 blocks(static_cast<unsigned>(together), static_cast<unsigned>(args.row_blocks()),
                    static_cast<unsigned>((heads + together - 1) / together));
  kernel<<<blocks, kThreads, shared_bytes, stream>>>(params...);
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

template <typename T, int D>
void enqueue(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.shared());
  const SparseLists lists(args);
  if (!args.by_tiles()) {
    return launch(ranges_kernel_sm90<T, D>, kListedSharedBytes<D>, args, stream, p, lists);
  }
  const Boxes boxes = boxes_for(args.kv);
  const auto map_of = [&](const TensorView& cache) {
    return boxes.bulk ? describe<T, D>(cache, boxes.tokens) : CUtensorMap{};
  };
  launch(tiles_kernel_sm90<T, D>, kSharedBytes<D>, args, stream, p, lists, map_of(args.kv.keys),
         map_of(args.kv.values), boxes);
}

}  // namespace
}  // namespace sm90

template <typename T>
bool sparse_attention_sm90(const SparseAttention& args, cudaStream_t stream) {
  if (!sm90::serves(args.shared())) return false;
  args.q.shape[2] == 64 ? sm90::enqueue<T, 64>(args, stream) : sm90::enqueue<T, 128>(args, stream);
  return true;
}

template bool sparse_attention_sm90<Bf16>(const SparseAttention& args, cudaStream_t stream);
template bool sparse_attention_sm90<F16>(const SparseAttention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
