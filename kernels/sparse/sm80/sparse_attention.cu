// Sparse attention on the GPU: the choice of a kernel, and the one for float32 (attention_float.cuh).
#include "device/cuda/stream.h"
#include "kernels/attention/sm80/attention_float.cuh"
#include "kernels/sparse/sm80/sparse_attention.cuh"
#include "kernels/sparse/sm80/sparse_attention.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kTileRows = static_cast<int>(kSparseTile);

__global__ void __launch_bounds__(plain::kWarps * 32)
    sparse_float_kernel(const AttentionParams<float> p, const SparseLists lists) {
  const int q_row = blockIdx.y * plain::kWarps + threadIdx.y;
  if (q_row >= lists.rows) return;
  const int first = q_row / kTileRows * kTileRows;
  const AttentionRows<float> rows = rows_of_head(p, lists, blockIdx.x, first, kTileRows);
  plain::Row row = plain::start_row(rows, q_row - first);
#pragma unroll 1
  for (int i = 0; i < lists.count; ++i) {
    plain::add_tokens(listed(rows, lists, list_of(rows, lists, i)), q_row - first, row);
  }
  plain::write_row(rows, q_row - first, row);
}

void sparse_float(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<float> p(args.shared());
  const dim3 blocks(p.heads,
                    static_cast<unsigned>((args.q.shape[0] + plain::kWarps - 1) / plain::kWarps));
  sparse_float_kernel<<<blocks, dim3(32, plain::kWarps), 0, stream>>>(p, SparseLists(args));
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

template <typename T>
void on_tensor_cores(const SparseAttention& args, cudaStream_t stream) {
  if (!sparse_attention_sm90<T>(args, stream)) sparse_attention_prefill<T>(args, stream);
}

}  // namespace

void sparse_attention(const SparseAttention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (args.q.dtype) {
    case DType::f32: return sparse_float(args, native);
    case DType::bf16: return on_tensor_cores<Bf16>(args, native);
    default: return on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
