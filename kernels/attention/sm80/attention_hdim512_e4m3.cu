// Attention on the GPU with heads of 257 to 512 elements to a cache of E4m3 (hdim512_launch.cuh,
// e4m3_rows.cuh).
#include "kernels/attention/sm80/hdim512_launch.cuh"

namespace nvllm::kernels::cuda {

void attention_hdim512_e4m3(const Attention& args, cudaStream_t stream) {
  switch (args.q.dtype) {
    case DType::f32: return hdim512_float32<E4m3Cache<float>>(args, stream);
    case DType::bf16: return hdim512_on_tensor_cores<E4m3Cache<Bf16>>(args, stream);
    default: return hdim512_on_tensor_cores<E4m3Cache<F16>>(args, stream);
  }
}

}  // namespace nvllm::kernels::cuda
