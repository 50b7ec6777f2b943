#include "kernels/gemm/testing/references.h"

#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/pointwise/testing/references.h"

namespace nvllm::kernels {
namespace {

template <typename T>
float element(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  return to_float(tensor.as<T>()[row * tensor.stride[0] + column]);
}

// 1 / sqrt(mean of a row's squares + epsilon).
double norm_factor(const GemmCall& call, std::int64_t row) {
  const GemmOperands::PrologueOperands& prologue = call.operands.prologue;
  const TensorView& squares = prologue.deferred.squares;
  double sum = 0;
  for (std::int64_t part = 0; part < squares.shape[0]; ++part) {
    sum += squares.as<float>()[part * kSquaresRows + row];
  }
  return 1 / std::sqrt(sum / static_cast<double>(call.weight.inputs()) + prologue.epsilon);
}

// All of x, row by row.
template <typename T>
std::vector<float> values_of(const TensorView& x) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(x.elements()));
  for (std::int64_t row = 0; row < x.shape[0]; ++row) {
    for (std::int64_t i = 0; i < x.shape[1]; ++i) values.push_back(element<T>(x, row, i));
  }
  return values;
}

// An output's weights.
template <typename T>
std::vector<float> weights_of(const GemmWeight& weight, std::int64_t output) {
  std::vector<float> row(static_cast<std::size_t>(weight.inputs()));
  if (is_quantized(weight.format)) {
    const TensorView &values = weight.values, &scales = weight.quantized.scales;
    dequantize_row(weight.quantized_shape(), values.as<std::byte>() + output * values.shape[1],
                   scales.as<std::byte>() + output * scales.shape[1] * size_of(scales.dtype),
                   row.data());
    return row;
  }
  for (std::int64_t i = 0; i < weight.inputs(); ++i)
    row[static_cast<std::size_t>(i)] = element<T>(weight.values, output, i);
  return row;
}

// The GEMM alone, of x to out.
template <typename T, typename Out>
void multiply(const GemmCall& call, const TensorView& x, const TensorView& out) {
  const bool deferred = call.plan.prologue == Prologue::deferred_rms_norm;
  const TensorView &residual = call.operands.residual, &bias = call.weight.bias;
  const std::vector<float> values = values_of<T>(x);
  const auto inputs = static_cast<std::size_t>(call.weight.inputs());
  for (std::int64_t output = 0; output < out.shape[1]; ++output) {
    const std::vector<float> weights = weights_of<T>(call.weight, output);
    for (std::int64_t row = 0; row < out.shape[0]; ++row) {
      const double factor = deferred ? norm_factor(call, row) : 1;
      // A sum in double has no rounding worth speaking of, hence no order.
      const float* const own = values.data() + static_cast<std::size_t>(row) * inputs;
      double sum = 0;
      for (std::size_t i = 0; i < inputs; ++i) sum += double{own[i]} * weights[i];
      sum *= factor;
      if (bias.data != nullptr) sum += to_float(bias.as<T>()[output]);
      if (residual.data != nullptr) sum += element<T>(residual, row, output);
      out.as<Out>()[row * out.stride[0] + output] = from_float<Out>(static_cast<float>(sum));
    }
  }
}

template <typename T>
void multiply(const GemmCall& call, const TensorView& x, const TensorView& out) {
  if (out.dtype == DType::f32) return multiply<T, float>(call, x, out);
  multiply<T, T>(call, x, out);
}

template <typename T>
void defer_norm(const GemmOperands& operands) {
  const TensorView& out = operands.out;
  const GemmOperands::EpilogueOperands& next = operands.epilogue;
  for (std::int64_t row = 0; row < out.shape[0]; ++row) {
    for (std::int64_t o = 0; o < out.shape[1]; ++o) {
      const float value = element<T>(out, row, o);
      next.deferred.weighted.as<T>()[row * out.shape[1] + o] =
          from_float<T>(value * to_float(next.norm_weight.as<T>()[o]));
      float& sum = next.deferred.squares.as<float>()[o / kSquaresColumns * kSquaresRows + row];
      sum = (o % kSquaresColumns == 0 ? 0 : sum) + value * value;
    }
  }
}

}  // namespace

void gemm_reference(const GemmCall& call) {
  check_gemm(call);
  const Prologue prologue = call.plan.prologue;
  TensorView x = call.operands.x, out = call.operands.out;
  if (prologue == Prologue::deferred_rms_norm) x = call.operands.prologue.deferred.weighted;
  if (prologue == Prologue::rms_norm) rms_norm_reference(norm_of(call)), x = prepared_x(call);
  if (prologue == Prologue::gated_activation) {
    gated_activation_reference(prologue_activation(call));
    x = prepared_x(call);
  }
  if (call.plan.epilogue == Epilogue::gated_activation) out = gate_up_of(call);
  switch (call.weight.type()) {
    case DType::f32: multiply<float, float>(call, x, out); break;
    case DType::bf16: multiply<Bf16>(call, x, out); break;
    default: multiply<F16>(call, x, out); break;
  }
  if (call.plan.epilogue == Epilogue::gated_activation) {
    gated_activation_reference(epilogue_activation(call));
  }
  if (call.plan.defers_next) defer_norm_reference(call);
}

void defer_norm_reference(const GemmCall& call) {
  const TensorView& out = call.operands.out;
  NVLLM_CHECK(out.dtype == call.weight.type(), "out is ", out.describe());
  switch (out.dtype) {
    case DType::f32: return defer_norm<float>(call.operands);
    case DType::bf16: return defer_norm<Bf16>(call.operands);
    default: return defer_norm<F16>(call.operands);
  }
}

}  // namespace nvllm::kernels
