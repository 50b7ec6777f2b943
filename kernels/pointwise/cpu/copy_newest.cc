// Few bytes: the plain definition in the stream's order.
#include "kernels/pointwise/cpu/copy_newest.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void copy_newest(const CopyNewest& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { copy_newest_reference(args); });
}

}  // namespace nvllm::kernels::cpu
