// Attention of few query rows per sequence (attention_decode.cuh).
#include "kernels/attention/sm80/attention_decode.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, int D>
__global__ void __launch_bounds__(decode::kWarps<D> * 32)
    decode_kernel(const AttentionParams<T> p) {
  decode::attend<T, D>(AttentionPart<T>(p, blockIdx.z, blockIdx.y));
}

template <int D, typename T>
void launch_decode(const Attention& args, const AttentionParams<T>& p, cudaStream_t stream) {
  decode::launch<D>(decode_kernel<T, D>, p, args.max_query_rows, args.kv_length.shape[0],
                    args.max_kv_length, stream);
}

}  // namespace

template <typename T>
void attention_decode(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  if (p.head_dim <= 64) return launch_decode<64>(args, p, stream);
  if (p.head_dim <= 128) return launch_decode<128>(args, p, stream);
  launch_decode<256>(args, p, stream);
}

template void attention_decode<Bf16>(const Attention& args, cudaStream_t stream);
template void attention_decode<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
