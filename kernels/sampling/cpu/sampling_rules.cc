#include "kernels/sampling/cpu/sampling_rules.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  nvllm::cpu::stream(stream).submit([to, kept = std::vector<std::uint32_t>(words, words + count)] {
    std::copy(kept.begin(), kept.end(), to);
  });
}

}  // namespace nvllm::kernels::cpu
