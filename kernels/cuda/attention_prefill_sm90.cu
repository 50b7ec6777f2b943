// Attention of many query rows per sequence on Hopper: a block has 128 packed rows of a sequence and a KV head
// (attention_block_sm90.cuh).
#include "kernels/cuda/attention_block_sm90.cuh"
#include "kernels/cuda/attention_maps_sm90.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel_sm90(const AttentionParams<T> p, const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const RowBlock block =
      find_row_block<kRows>(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  if (block.sequence < 0) return;
  attend<T, D>(AttentionPart<T>(p, block.sequence, blockIdx.y), block.first_row, keys, values,
               boxes, memory);
#endif
}

template <int D, typename T>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const Boxes boxes = boxes_for(args.kv);
  const auto map_of = [&](const TensorView& cache) {
    return boxes.bulk ? describe<T, D>(cache, boxes.tokens) : CUtensorMap{};
  };
  const auto kernel = prefill_kernel_sm90<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing attention");
  const dim3 blocks(static_cast<unsigned>(p.most_row_blocks(args.q.shape[0], kRows)), p.kv_heads());
  kernel<<<blocks, kThreads, kSharedBytes<D>, stream>>>(p, map_of(args.kv.keys),
                                                        map_of(args.kv.values), boxes);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

}  // namespace
}  // namespace sm90

template <typename T>
bool attention_prefill_sm90(const Attention& args, cudaStream_t stream) {
  if (!sm90::serves(args)) return false;
  args.q.shape[2] == 64 ? sm90::launch<64, T>(args, stream) : sm90::launch<128, T>(args, stream);
  return true;
}

template bool attention_prefill_sm90<Bf16>(const Attention& args, cudaStream_t stream);
template bool attention_prefill_sm90<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
