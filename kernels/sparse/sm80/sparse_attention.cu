// Sparse attention on the GPU to a cache of the rows' type (sparse_attention_launch.cuh);
// sparse_attention_e4m3.cu has the rest.
#include "kernels/sparse/sm80/sparse_attention_launch.cuh"

namespace nvllm::kernels::cuda {

void sparse_attention(const SparseAttention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (args.kv.keys.dtype == DType::u8) return sparse_attention_e4m3(args, native);
  switch (args.q.dtype) {
    case DType::f32: return sparse_float32<float>(args, native);
    case DType::bf16: return on_tensor_cores<Bf16>(args, native);
    default: return on_tensor_cores<F16>(args, native);
  }
}

void page_attention(const PageAttention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (args.kv.keys.dtype == DType::u8) return page_attention_e4m3(args, native);
  switch (args.q.dtype) {
    case DType::f32: return page_float32<float>(args, native);
    case DType::bf16: return on_tensor_cores<Bf16>(args, native);
    default: return on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
