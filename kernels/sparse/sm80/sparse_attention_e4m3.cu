// Sparse attention on the GPU to a cache of E4m3 (kernels/attention/sm80/e4m3_rows.cuh).
#include "kernels/sparse/sm80/sparse_attention_launch.cuh"

namespace nvllm::kernels::cuda {

void sparse_attention_e4m3(const SparseAttention& args, cudaStream_t stream) {
  switch (args.q.dtype) {
    case DType::f32: return sparse_float32<E4m3Cache<float>>(args, stream);
    case DType::bf16: return on_tensor_cores<E4m3Cache<Bf16>>(args, stream);
    default: return on_tensor_cores<E4m3Cache<F16>>(args, stream);
  }
}

void page_attention_e4m3(const PageAttention& args, cudaStream_t stream) {
  switch (args.q.dtype) {
    case DType::f32: return page_float32<E4m3Cache<float>>(args, stream);
    case DType::bf16: return on_tensor_cores<E4m3Cache<Bf16>>(args, stream);
    default: return on_tensor_cores<E4m3Cache<F16>>(args, stream);
  }
}

}  // namespace nvllm::kernels::cuda
