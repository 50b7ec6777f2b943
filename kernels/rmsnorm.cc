#include "kernels/rmsnorm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/cpu/rmsnorm.h"
#ifdef NVLLM_CUDA
#include "kernels/cuda/rmsnorm.h"
#endif

namespace nvllm::kernels {
namespace {

void check_argument(const TensorView& tensor, const char* name, const TensorView& x, int rank) {
  require_contiguous(tensor, "rms_norm", name);
  if (tensor.dtype != x.dtype) {
    fail("rms_norm: ", name, " is ", tensor.describe(), ", but x is ", x.describe(),
         "; all tensors must be of one type");
  }
  const bool fits =
      rank == 2 ? tensor.rank == 2 && tensor.shape[0] == x.shape[0] && tensor.shape[1] == x.shape[1]
                : tensor.rank == 1 && tensor.shape[0] == x.shape[1];
  if (!fits)
    fail("rms_norm: ", name, " is ", tensor.describe(), ", which does not fit x, ", x.describe());
  // The types have the size of their alignment.
  if (!tensor.aligned(size_of(tensor.dtype))) {
    fail("rms_norm: ", name, " lies at ", tensor.data, ", which is no address of a ",
         name_of(tensor.dtype));
  }
}

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
  const TensorView& x = args.x;
  const bool known = x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16;
  if (!known) fail("rms_norm: x is ", x.describe(), "; it must be float32, bfloat16 or float16");
  if (x.rank != 2 || x.shape[1] < 1 || x.shape[1] > kRmsNormMaxColumns) {
    fail("rms_norm: x is ", x.describe(), "; it must be [rows, columns] with 1 to ",
         kRmsNormMaxColumns, " columns");
  }
  check_argument(args.x, "x", x, 2);
  check_argument(args.out, "out", x, 2);
  check_argument(args.weight, "weight", x, 1);
  if (args.residual.data != nullptr) check_argument(args.residual, "residual", x, 2);
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
  switch (args.x.dtype) {
    case DType::f32: return reference<float>(args);
    case DType::bf16: return reference<Bf16>(args);
    default: return reference<F16>(args);
  }
}

}  // namespace nvllm::kernels
