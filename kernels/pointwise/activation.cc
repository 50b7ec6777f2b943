#include "kernels/pointwise/activation.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

// In double, so that what a fast version loses is seen.
double activate(Activation activation, double g) {
  switch (activation) {
    case Activation::silu: return g / (1 + std::exp(-g));
    case Activation::gelu: return g * std::erfc(-g / std::numbers::sqrt2) / 2;
    case Activation::gelu_tanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
      return g / (1 + std::exp(-2 * inner));  // (1 + tanh(inner)) / 2 without its cancellation
    }
  }
  return 0;  // check_gated_activation() lets no other pass
}

}  // namespace

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

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::silu: return "silu";
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
  }
  return "?";
}

void check_gated_activation(const GatedActivation& args) {
  constexpr Arguments check("gated_activation");
  check.require_floats(args.out, "out", 2, "[rows, n]");
  check.require_dense(args.out, "out");
  check.require(args.x, "x", args.out.dtype, {args.out.shape[0], 2 * args.out.shape[1]});
  check.require_dense(args.x, "x");
  if (args.activation > Activation::gelu_tanh) {
    fail("gated_activation: activation ", static_cast<int>(args.activation), " is none");
  }
}

void gated_activation(const GatedActivation& args, Stream& stream) {
  check_gated_activation(args);
  if (args.out.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::gated_activation(args, stream);
#endif
  cpu::gated_activation(args, stream);
}

void gated_activation_reference(const GatedActivation& args) {
  check_gated_activation(args);
  const std::int64_t rows = args.out.shape[0], n = args.out.shape[1];
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* gate = args.x.as<T>() + row * 2 * n;
      const T* up = gate + n;
      T* out = args.out.as<T>() + row * n;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto active = static_cast<float>(activate(args.activation, to_float(gate[i])));
        out[i] = from_float<T>(active * to_float(up[i]));
      }
    }
  });
}

}  // namespace nvllm::kernels
