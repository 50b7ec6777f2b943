// Writing words that travel with the call: a copy of up to 64 KiB from pageable memory takes them at once into what it
// puts into the stream, and nobody waits. It holds a stream up for less than a copy from pinned memory, and takes less
// of the host's time than a kernel that has the words as arguments (docs/performance.md, "Between two steps").
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/sampling/sm80/sampling_rules.h"

namespace nvllm::kernels::cuda {

void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  constexpr std::int64_t kAtOnce = (64 << 10) / sizeof(std::uint32_t);
  for (std::int64_t done = 0; done < count; done += kAtOnce) {
    const auto bytes = static_cast<std::size_t>(std::min(kAtOnce, count - done)) * sizeof(*words);
    nvllm::cuda::check(cudaMemcpyAsync(to + done, words + done, bytes, cudaMemcpyHostToDevice,
                                       nvllm::cuda::native(stream)),
                       "writing words");
  }
}

}  // namespace nvllm::kernels::cuda
