#include "kernels/gemm/linear.h"

#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "kernels/gemm/cpu/linear.h"
#include "kernels/gemm/linear_before.h"
#ifdef NVLLM_CUDA
#include "kernels/gemm/sm80/linear.h"
#endif

namespace nvllm::kernels {
namespace {

void check_type(const TensorView& tensor, const char* name, DType type) {
  if (tensor.dtype != type) {
    fail("linear: ", name, " is ", tensor.describe(), ", but weight is ", name_of(type),
         "; all tensors must be of one type, except that out may be float32");
  }
  // The types have the size of their alignment.
  if (!tensor.aligned(size_of(tensor.dtype))) {
    fail("linear: ", name, " lies at ", tensor.data, ", which is no address of a ",
         name_of(tensor.dtype));
  }
}

void check_dense(const TensorView& tensor, const char* name, DType type) {
  require_contiguous(tensor, "linear", name);
  check_type(tensor, name, type);
}

[[noreturn]] void fail_shape(const TensorView& tensor, const char* name, const char* shape,
                             std::int64_t rows, std::int64_t columns) {
  fail("linear: ", name, " is ", tensor.describe(), "; it must be ", shape, ", [", rows, ", ",
       columns, "]");
}

// Of this shape, the elements of a row dense, rows in ascending order without overlap.
void check_rows(const TensorView& tensor, const char* name, const char* shape, std::int64_t rows,
                std::int64_t columns) {
  if (tensor.rank != 2 || tensor.shape[0] != rows || tensor.shape[1] != columns) {
    fail_shape(tensor, name, shape, rows, columns);
  }
  if (tensor.elements() == 0) return;
  if ((columns > 1 && tensor.stride[1] != 1) || (rows > 1 && tensor.stride[0] < columns)) {
    fail("linear: ", name, " is ", tensor.describe(), " with strides [", tensor.stride[0], ", ",
         tensor.stride[1], "]; its rows must be dense, and may lie apart but not overlap");
  }
}

void check_vector(const TensorView& tensor, const char* name, std::int64_t columns, DType type) {
  if (tensor.rank != 1 || tensor.shape[0] != columns) {
    fail("linear: ", name, " is ", tensor.describe(), "; with this weight it must be [", columns,
         "]");
  }
  check_dense(tensor, name, type);
}

void check_before(const Linear& args) {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  const TensorView& scratch = args.scratch;
  if (scratch.rank != 2 || scratch.shape[0] < rows || scratch.shape[1] != inputs) {
    fail("linear: scratch is ", scratch.describe(), "; what happens to x first needs [at least ",
         rows, ", ", inputs, "]");
  }
  check_dense(scratch, "scratch", args.weight.dtype);
  if (args.before == Linear::Before::rms_norm) return check_rms_norm(norm_before(args));
  check_gated_activation(activation_before(args));
}

void check_after(const Linear& args) {
  const std::int64_t rows = args.out.shape[0], outputs = args.weight.shape[0];
  const TensorView& product = args.product;
  if (args.out.dtype != args.weight.dtype) {  // the product's rows are of out's type
    fail("linear: out is ", args.out.describe(), ", but weight is ", name_of(args.weight.dtype),
         "; with an activation after the product they must be of one type");
  }
  if (args.residual.data != nullptr) {
    fail("linear: residual is ", args.residual.describe(),
         "; with an activation after the product there is none");
  }
  if (product.rank != 2 || product.shape[0] < rows || product.shape[1] != outputs) {
    fail("linear: product is ", product.describe(), "; what happens to it next needs [at least ",
         rows, ", ", outputs, "]");
  }
  check_dense(product, "product", args.weight.dtype);
  check_gated_activation(activation_after(args));
}

void check_squares(const TensorView& squares, const char* name, std::int64_t rows,
                   std::int64_t columns) {
  if (rows > kSquaresRows || columns % kSquaresColumns != 0) {
    fail("linear: ", name, " is ", squares.describe(), " for [", rows, ", ", columns,
         "]; a norm is begun of up to ", kSquaresRows, " rows of a multiple of ", kSquaresColumns,
         " columns");
  }
  check_rows(squares, name, "[columns / 64, 128]", columns / kSquaresColumns, kSquaresRows);
  require_contiguous(squares, "linear", name);
  check_type(squares, name, DType::f32);
}

void check_begun(const Linear& args) {
  if (args.before == Linear::Before::gated_activation) {
    fail("linear: begun.squares is ", args.begun.squares.describe(),
         "; an activation before the product has no norm");
  }
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  check_rows(args.begun.weighted, "begun.weighted", "[rows, inputs]", rows, inputs);
  check_dense(args.begun.weighted, "begun.weighted", args.weight.dtype);
  check_squares(args.begun.squares, "begun.squares", rows, inputs);
}

void check_begins(const Linear& args) {
  const std::int64_t rows = args.out.shape[0], outputs = args.out.shape[1];
  check_rows(args.begins.weighted, "begins.weighted", "[rows, outputs]", rows, outputs);
  check_dense(args.begins.weighted, "begins.weighted", args.weight.dtype);
  check_squares(args.begins.squares, "begins.squares", rows, outputs);
  check_vector(args.next_norm_weight, "next_norm_weight", outputs, args.weight.dtype);
}

// 1 / sqrt(mean of a row's squares + epsilon).
double factor_of(const Linear& args, std::int64_t row) {
  const TensorView& squares = args.begun.squares;
  double sum = 0;
  for (std::int64_t part = 0; part < squares.shape[0]; ++part) {
    sum += squares.as<float>()[part * kSquaresRows + row];
  }
  return 1 / std::sqrt(sum / static_cast<double>(args.weight.shape[1]) + args.epsilon);
}

template <typename T>
float element(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  return to_float(tensor.as<T>()[row * tensor.stride[0] + column]);
}

template <typename T, typename Out>
void reference(const Linear& args) {
  for (std::int64_t row = 0; row < args.out.shape[0]; ++row) {
    const double factor = norm_is_begun(args) ? factor_of(args, row) : 1;
    for (std::int64_t output = 0; output < args.out.shape[1]; ++output) {
      // A sum of float32 products in double has no rounding worth speaking of, hence no order.
      double sum = 0;
      for (std::int64_t i = 0; i < args.weight.shape[1]; ++i) {
        sum += double{element<T>(args.x, row, i)} * element<T>(args.weight, output, i);
      }
      sum *= factor;
      if (args.bias.data != nullptr) sum += to_float(args.bias.as<T>()[output]);
      if (args.residual.data != nullptr) sum += element<T>(args.residual, row, output);
      args.out.as<Out>()[row * args.out.stride[0] + output] =
          from_float<Out>(static_cast<float>(sum));
    }
  }
}

template <typename T>
void begin_norm(const Linear& args) {
  for (std::int64_t row = 0; row < args.out.shape[0]; ++row) {
    for (std::int64_t o = 0; o < args.out.shape[1]; ++o) {
      const float value = element<T>(args.out, row, o);
      args.begins.weighted.as<T>()[row * args.out.shape[1] + o] =
          from_float<T>(value * to_float(args.next_norm_weight.as<T>()[o]));
      float& sum = args.begins.squares.as<float>()[o / kSquaresColumns * kSquaresRows + row];
      sum = (o % kSquaresColumns == 0 ? 0 : sum) + value * value;
    }
  }
}

template <typename T>
void reference(const Linear& args) {
  if (args.out.dtype == DType::f32) return reference<T, float>(args);
  reference<T, T>(args);
}

}  // namespace

void check_linear(const Linear& args) {
  const TensorView& weight = args.weight;
  const DType type = weight.dtype;
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16) {
    fail("linear: weight is ", weight.describe(), "; it must be float32, bfloat16 or float16");
  }
  if (weight.rank != 2) {
    fail("linear: weight is ", weight.describe(), "; it must be [outputs, inputs]");
  }
  check_dense(weight, "weight", type);
  const std::int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  const bool gated = args.before == Linear::Before::gated_activation;
  const std::int64_t rows = args.x.rank == 2 ? args.x.shape[0] : 0;
  check_rows(args.x, "x", gated ? "[rows, 2 * inputs]" : "[rows, inputs]", rows,
             gated ? 2 * inputs : inputs);
  check_type(args.x, "x", type);
  const bool gates = args.after == Linear::After::gated_activation;
  check_rows(args.out, "out", gates ? "[rows of x, outputs / 2]" : "[rows of x, outputs]", rows,
             gates ? outputs / 2 : outputs);
  check_type(args.out, "out", args.out.dtype == DType::f32 ? DType::f32 : type);
  if (args.bias.data != nullptr) check_vector(args.bias, "bias", outputs, type);
  if (args.residual.data != nullptr) {
    check_rows(args.residual, "residual", "[rows of x, outputs]", rows, outputs);
    check_type(args.residual, "residual", type);
  }
  if (args.before != Linear::Before::nothing) check_before(args);
  if (norm_is_begun(args)) check_begun(args);
  if (begins_norm(args)) check_begins(args);
  if (gates) check_after(args);
  if (args.ahead.kv.keys.data != nullptr) check_kv_prefetch(args.ahead, "linear");
}

std::unique_ptr<Matmul> create_matmul(Backend& backend) {
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) return cuda::create_matmul(backend);
#endif
  return cpu::create_matmul(backend);
}

std::size_t matmul_bytes(DeviceKind device) {
#ifdef NVLLM_CUDA
  if (device == DeviceKind::cuda) return cuda::kMatmulBytes;
#endif
  static_cast<void>(device);
  return 0;
}

void linear_reference(const Linear& args) {
  check_linear(args);
  const bool halved = norm_is_begun(args);
  if (args.before == Linear::Before::rms_norm && !halved) rms_norm_reference(norm_before(args));
  if (args.before == Linear::Before::gated_activation) {
    gated_activation_reference(activation_before(args));
  }
  const Linear product = product_after(halved ? rest_of_norm(args) : args);
  switch (product.weight.dtype) {
    case DType::f32: reference<float, float>(product); break;
    case DType::bf16: reference<Bf16>(product); break;
    default: reference<F16>(product); break;
  }
  if (args.after == Linear::After::gated_activation) {
    gated_activation_reference(activation_after(args));
  }
  if (begins_norm(args)) begin_norm_reference(args);
}

void begin_norm_reference(const Linear& args) {
  NVLLM_CHECK(args.out.dtype == args.weight.dtype, "out is ", args.out.describe());
  switch (args.out.dtype) {
    case DType::f32: return begin_norm<float>(args);
    case DType::bf16: return begin_norm<Bf16>(args);
    default: return begin_norm<F16>(args);
  }
}

}  // namespace nvllm::kernels
