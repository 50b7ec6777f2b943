// Few words: the plain definition in the stream's order.
#include "kernels/pointwise/cpu/copy_to_place.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void copy_to_place(const CopyToPlace& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { copy_to_place_reference(args); });
}

}  // namespace nvllm::kernels::cpu
