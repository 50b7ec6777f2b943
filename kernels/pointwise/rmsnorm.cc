#include "kernels/pointwise/rmsnorm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

template <typename T>
void reference(const RmsNorm& args) {
  const std::int64_t columns = args.x.shape[1];
  for (std::int64_t row = 0; row < args.x.shape[0]; ++row) {
    const T* x = args.x.as<T>() + row * columns;
    if (args.residual.data != nullptr) {
      T* residual = args.residual.as<T>() + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) {
        residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
      }
      x = residual;
    }
    // The squares are float32, so they overflow as everywhere. A sum of them in double has no
    // rounding worth speaking of, hence no order.
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += to_float(x[i]) * to_float(x[i]);
    const float mean = static_cast<float>(sum) / static_cast<float>(columns);
    const float scale = 1.0f / std::sqrt(mean + args.epsilon);
    const T* weight = args.weight.as<T>();
    T* out = args.out.as<T>() + row * columns;
    for (std::int64_t i = 0; i < columns; ++i) {
      out[i] = from_float<T>(to_float(x[i]) * scale * to_float(weight[i]));
    }
  }
}

}  // namespace

void check_rms_norm(const RmsNorm& args) {
  constexpr Arguments check("rms_norm");
  const TensorView& x = args.x;
  check.require_floats(x, "x", 2, "[rows, columns]");
  check.require_dense(x, "x");
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  if (columns < 1 || columns > kRmsNormMaxColumns) {
    fail("rms_norm: x is ", x.describe(), "; it must have 1 to ", kRmsNormMaxColumns, " columns");
  }
  check.require(args.out, "out", x.dtype, {rows, columns});
  check.require_dense(args.out, "out");
  check.require(args.weight, "weight", x.dtype, {columns});
  check.require_dense(args.weight, "weight");
  if (args.residual.data == nullptr) return;
  check.require(args.residual, "residual", x.dtype, {rows, columns});
  check.require_dense(args.residual, "residual");
}

void rms_norm(const RmsNorm& args, Stream& stream) {
  check_rms_norm(args);
  if (args.x.shape[0] == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::rms_norm(args, stream);
#endif
  cpu::rms_norm(args, stream);
}

void rms_norm_reference(const RmsNorm& args) {
  check_rms_norm(args);
  with_element_type(args.x.dtype, [&]<typename T>(T) { reference<T>(args); });
}

}  // namespace nvllm::kernels
