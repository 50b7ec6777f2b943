#include "kernels/common/cpu/lanes_avx512.h"
// Lanes come first.
#include "kernels/attention/cpu/attention_tile.h"

namespace nvllm::kernels::cpu {

AttendPart attend_part_avx512(DType type) {
  return attend_part_of(type);
}

}  // namespace nvllm::kernels::cpu
