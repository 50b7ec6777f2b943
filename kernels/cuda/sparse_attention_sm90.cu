// Sparse attention to tiles on Hopper: a block has a tile of 128 rows of a head (attention_block_sm90.cuh), and
// copies the tiles of its list.
#include "kernels/cuda/attention_block_sm90.cuh"
#include "kernels/cuda/attention_maps_sm90.cuh"
#include "kernels/cuda/sparse_attention.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

static_assert(kRows == kSparseTile && kTokens == kSparseTile);

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_kernel_sm90(const AttentionParams<T> p, const SparseLists lists,
                       const __grid_constant__ CUtensorMap keys,
                       const __grid_constant__ CUtensorMap values, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  // The last rows have the most tokens: they go first. The heads of a KV head lie next to one another.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const AttentionRows<T> rows = rows_of_head(p, lists, blockIdx.x, block * kRows, kRows);
  attend<T, D>(listed(rows, lists, tiles_of(rows, lists)), 0, keys, values, boxes, memory);
#endif
}

template <typename T, int D>
void launch(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.shared());
  const Boxes boxes = boxes_for(args.kv);
  const auto map_of = [&](const TensorView& cache) {
    return boxes.bulk ? describe<T, D>(cache, boxes.tokens) : CUtensorMap{};
  };
  const auto kernel = sparse_kernel_sm90<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing sparse_attention");
  const dim3 blocks(p.heads, static_cast<unsigned>(args.row_blocks()));
  kernel<<<blocks, kThreads, kSharedBytes<D>, stream>>>(p, SparseLists(args), map_of(args.kv.keys),
                                                        map_of(args.kv.values), boxes);
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

}  // namespace
}  // namespace sm90

template <typename T>
bool sparse_attention_sm90(const SparseAttention& args, cudaStream_t stream) {
  if (!args.by_tiles() || !sm90::serves(args.shared())) return false;
  args.q.shape[2] == 64 ? sm90::launch<T, 64>(args, stream) : sm90::launch<T, 128>(args, stream);
  return true;
}

template bool sparse_attention_sm90<Bf16>(const SparseAttention& args, cudaStream_t stream);
template bool sparse_attention_sm90<F16>(const SparseAttention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
