#include "device/dtype.h"

#include <immintrin.h>

namespace nvllm {

float to_float(F16 value) {
  return _cvtsh_ss(value.bits);
}

template <>
F16 from_float<F16>(float value) {
  return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)};
}

}  // namespace nvllm
