// Writing words that travel as a kernel's arguments: no staging, so nothing to wait for.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sampling_rules.h"

namespace nvllm::kernels::cuda {
namespace {

// Arguments of a kernel are 4 KiB at most.
template <int kWords>
struct Words {
  std::uint32_t word[kWords];
};
constexpr int kFew = 24;
constexpr int kMany = 960;

template <int kWords>
__global__ void write_words_kernel(std::uint32_t* to, const Words<kWords> words, int count) {
  begin_after_previous_kernel();
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = words.word[i];
}

template <int kWords>
void launch(std::uint32_t* to, const std::uint32_t* words, int count, cudaStream_t stream) {
  Words<kWords> carried;
  std::memcpy(carried.word, words, count * sizeof(std::uint32_t));
  std::fill(carried.word + count, carried.word + kWords, 0u);
  launch_early("launching write_words", write_words_kernel<kWords>, dim3(1),
               dim3(count <= 32 ? 32 : 256), stream, to, carried, count);
}

}  // namespace

void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  while (count > kFew) {
    const int part = static_cast<int>(std::min<std::int64_t>(count, kMany));
    launch<kMany>(to, words, part, native);
    to += part, words += part, count -= part;
  }
  if (count > 0) launch<kFew>(to, words, static_cast<int>(count), native);
}

}  // namespace nvllm::kernels::cuda
