// Few words: the plain definition in the stream's order.
#include "kernels/pointwise/cpu/copy_to_ring.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void copy_to_ring(const CopyToRing& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { copy_to_ring_reference(args); });
}

}  // namespace nvllm::kernels::cpu
