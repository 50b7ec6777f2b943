// Prefill attention (many query rows per sequence) on Ampere and later, bfloat16 and float16: a
// block has 64 packed rows of a sequence and a KV head and runs the loop of prefill.cuh with
// mma.sync. The grid has an upper bound of the blocks of all sequences; blocks find their rows
// themselves, so a captured graph may change the lengths. Heads are padded to 64, 128 or 256.
// Launcher: attention_prefill().
#include "device/cuda/stream.h"
#include "kernels/attention/sm80/prefill.cuh"

namespace nvllm::kernels::cuda {
namespace prefill {
namespace {

template <typename T, int D>
__global__ void __launch_bounds__(kWarps * 32) prefill_kernel(const AttentionParams<T> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const RowBlock block =
      find_row_block(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), kRows);
  if (block.sequence < 0) return;
  const AttentionPart<T> part(p, block.sequence, blockIdx.y);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned queries = shared_address(shared);
  Rows<T, D> rows(queries, warp * 16, lane, p.scale);
  bool started = false;
  add_tokens<T, D>(part, block.first_row, queries, started, rows);
  write_rows<T, D>(part, block.first_row + warp * 16, rows);
}

template <int D, typename T>
void launch(const Attention& args, const AttentionParams<T>& p, cudaStream_t stream) {
  const auto kernel = prefill_kernel<T, D>;
  allow_shared_memory(kernel, kSharedBytes<D>, "preparing attention");
  const dim3 blocks(static_cast<unsigned>(p.max_row_blocks(args.q.shape[0], kRows)), p.kv_heads());
  kernel<<<blocks, kWarps * 32, kSharedBytes<D>, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

}  // namespace
}  // namespace prefill

template <typename T>
void attention_prefill(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  if (p.head_dim <= 64) return prefill::launch<64>(args, p, stream);
  if (p.head_dim <= 128) return prefill::launch<128>(args, p, stream);
  prefill::launch<256>(args, p, stream);
}

template void attention_prefill<Bf16>(const Attention& args, cudaStream_t stream);
template void attention_prefill<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
