#include "kernels/pointwise/bias.h"

#include "kernels/common/arguments.h"
#include "kernels/pointwise/cpu/bias.h"
#ifdef NVLLM_CUDA
#include "kernels/pointwise/sm80/bias.h"
#endif

namespace nvllm::kernels {

void check_add_bias(const AddBias& args) {
  constexpr Arguments check("add_bias");
  check.require_floats(args.x, "x", 2, "[rows, columns]");
  check.require_dense(args.x, "x");
  check.require(args.bias, "bias", args.x.dtype, {args.x.shape[1]});
  check.require_dense(args.bias, "bias");
}

void add_bias(const AddBias& args, Stream& stream) {
  check_add_bias(args);
  if (args.x.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::add_bias(args, stream);
#endif
  cpu::add_bias(args, stream);
}

void add_bias_reference(const AddBias& args) {
  check_add_bias(args);
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    const T* bias = args.bias.as<T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      T* x = args.x.as<T>() + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) {
        x[i] = from_float<T>(to_float(x[i]) + to_float(bias[i]));
      }
    }
  });
}

}  // namespace nvllm::kernels
