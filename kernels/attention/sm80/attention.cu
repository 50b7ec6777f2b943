// Attention on the GPU to a cache of the rows' type (attention_launch.cuh); attention_e4m3.cu has
// the rest.
#include "kernels/attention/sm80/attention_launch.cuh"

namespace nvllm::kernels::cuda {

void attention(const Attention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (args.q.shape[2] > kMaxCudaHeadDim) return attention_hdim512(args, native);
  if (args.kv.keys.dtype == DType::u8) return attention_e4m3(args, native);
  switch (args.q.dtype) {
    case DType::f32: return attention_float32<float>(args, native);
    case DType::bf16: return attention_on_tensor_cores<Bf16>(args, native);
    default: return attention_on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
