#include "device/cuda/stream.h"
#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/gemm/testing/bench_limits.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 512, kBlocks = 528, kInFlight = 8;

// `nowhere` is nullptr: words of one value everywhere would be needed to write there.
__global__ void __launch_bounds__(kThreads)
    read_kernel(const float* data, std::size_t vectors, unsigned* nowhere) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned all = 0;
  for (std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; first < vectors;
       first += step * kInFlight) {
    Vector<float> read[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::size_t vector = first + i * step;
      read[i] = load_weights(data + vector * 4, vector < vectors);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      all ^= read[i].word[0] ^ read[i].word[1] ^ read[i].word[2] ^ read[i].word[3];
    }
  }
  if (all == 0x5eed && nowhere != nullptr) *nowhere = all;
}

}  // namespace

void read_all(const Buffer& buffer, Stream& stream) {
  read_kernel<<<kBlocks, kThreads, 0, nvllm::cuda::native(stream)>>>(
      static_cast<const float*>(buffer.data()), buffer.bytes() / 16, nullptr);
  nvllm::cuda::check(cudaGetLastError(), "reading");
}

}  // namespace nvllm::kernels::cuda
