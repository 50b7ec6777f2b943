// Attention on the GPU with heads of 257 to 512 elements to a cache of the rows' type
// (hdim512_launch.cuh); attention_hdim512_e4m3.cu has the rest.
#include "kernels/attention/sm80/hdim512_launch.cuh"

namespace nvllm::kernels::cuda {

void attention_hdim512(const Attention& args, cudaStream_t stream) {
  static_assert(hdim512::kHeadDim == kMaxHeadDim);
  if (args.kv.keys.dtype == DType::u8) return attention_hdim512_e4m3(args, stream);
  switch (args.q.dtype) {
    case DType::f32: return hdim512_float32<float>(args, stream);
    case DType::bf16: return hdim512_on_tensor_cores<Bf16>(args, stream);
    default: return hdim512_on_tensor_cores<F16>(args, stream);
  }
}

}  // namespace nvllm::kernels::cuda
