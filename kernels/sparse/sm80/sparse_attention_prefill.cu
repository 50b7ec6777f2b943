// Sparse attention on tensor cores (Ampere and later): a block has 64 rows of a head (attention_prefill.cuh).
#include "device/cuda/stream.h"
#include "kernels/attention/sm80/attention_prefill.cuh"
#include "kernels/sparse/sm80/sparse_attention.cuh"

namespace nvllm::kernels::cuda {
namespace prefill {
namespace {

static_assert(kSparseTile % kRows == 0);

template <typename T, int D>
__global__ void __launch_bounds__(kWarps * 32)
    sparse_kernel(const AttentionParams<T> p, const SparseLists lists) {
  extern __shared__ __align__(128) unsigned char shared[];
  // The last rows have the most tokens: they go first. The heads of a KV head lie next to one another.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const AttentionRows<T> part = rows_of_head(p, lists, blockIdx.x, block * kRows, kRows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned queries = shared_address(shared);
  Rows<T, D> rows(queries, warp * 16, lane, p.scale);
  bool started = false;
#pragma unroll 1
  for (int i = 0; i < lists.count; ++i) {
    add_tokens<T, D>(listed(part, lists, list_of(part, lists, i)), 0, queries, started, rows);
  }
  write_rows<T, D>(part, warp * 16, rows);
}

template <typename T, int D>
void launch(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.shared());
  const auto kernel = sparse_kernel<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing sparse_attention");
  const dim3 blocks(p.heads, static_cast<unsigned>((args.q.shape[0] + kRows - 1) / kRows));
  kernel<<<blocks, kWarps * 32, kSharedBytes<D>, stream>>>(p, SparseLists(args));
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

}  // namespace
}  // namespace prefill

template <typename T>
void sparse_attention_prefill(const SparseAttention& args, cudaStream_t stream) {
  const std::int64_t head_dim = args.q.shape[2];
  if (head_dim <= 64) return prefill::launch<T, 64>(args, stream);
  if (head_dim <= 128) return prefill::launch<T, 128>(args, stream);
  prefill::launch<T, 256>(args, stream);
}

template void sparse_attention_prefill<Bf16>(const SparseAttention& args, cudaStream_t stream);
template void sparse_attention_prefill<F16>(const SparseAttention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
