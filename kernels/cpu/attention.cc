#include "kernels/cpu/attention.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void attention(const Attention& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { attention_reference(args); });
}

}  // namespace nvllm::kernels::cpu
