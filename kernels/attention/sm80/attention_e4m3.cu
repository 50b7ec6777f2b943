// Attention on the GPU to a cache of E4m3 (e4m3_rows.cuh).
#include "kernels/attention/sm80/attention_launch.cuh"

namespace nvllm::kernels::cuda {

void attention_e4m3(const Attention& args, cudaStream_t stream) {
  switch (args.q.dtype) {
    case DType::f32: return attention_float32<E4m3Cache<float>>(args, stream);
    case DType::bf16: return attention_on_tensor_cores<E4m3Cache<Bf16>>(args, stream);
    default: return attention_on_tensor_cores<E4m3Cache<F16>>(args, stream);
  }
}

}  // namespace nvllm::kernels::cuda
