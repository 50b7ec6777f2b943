// A few words per sequence and row: the plain definition is as fast as it gets.
#include "kernels/pointwise/cpu/step_input.h"

#include "device/cpu/stream.h"

namespace nvllm::kernels::cpu {

void step_input(const StepInput& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit([args] { step_input_reference(args); });
}

}  // namespace nvllm::kernels::cpu
