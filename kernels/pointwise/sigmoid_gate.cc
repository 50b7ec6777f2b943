#include "kernels/pointwise/sigmoid_gate.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

void check_sigmoid_gate(const SigmoidGate& args) {
  constexpr Arguments check("sigmoid_gate");
  check.require_floats(args.x, "x", 2, "[rows, columns]");
  check.require_dense(args.x, "x");
  check.require_dense(args.gate, "gate", args.x.dtype, {args.x.shape[0], args.x.shape[1]});
}

void sigmoid_gate(const SigmoidGate& args, Stream& stream) {
  check_sigmoid_gate(args);
  if (args.x.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, sigmoid_gate(args, stream));
}

// On the CPU, eight elements at a time.
namespace cpu {
namespace {

__m256 gate8(__m256 x, __m256 gate) {
  const __m256 minus = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus)));
}

template <typename T>
struct GateJob {
  T* x;
  const T* gate;
  std::int64_t columns;

  void operator()(std::int64_t begin, std::int64_t end) const {
    std::int64_t i = begin * columns;
    for (; i + kLanes <= end * columns; i += kLanes) {
      store8(x + i, gate8(load8(x + i), load8(gate + i)));
    }
    const std::int64_t left = end * columns - i;
    if (left > 0) store_some(x + i, gate8(load_some(x + i, left), load_some(gate + i, left)), left);
  }
};

}  // namespace

void sigmoid_gate(const SigmoidGate& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.x.shape[1];
    submit_rows(stream, args.x.shape[0], 6 * columns * sizeof(T),
                GateJob<T>{args.x.as<T>(), args.gate.as<T>(), columns});
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
