// Few bytes: the plain definition in the stream's order.
#include "kernels/pointwise/cpu/copy_last_kv.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void copy_last_kv(const CopyLastKv& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { copy_last_kv_reference(args); });
}

}  // namespace nvllm::kernels::cpu
