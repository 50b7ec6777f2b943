#include "kernels/pointwise/testing/references.h"

#include <cmath>
#include <numbers>

#include "device/e4m3.h"
#include "kernels/common/arguments.h"
#include "kernels/common/host_device.h"

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
    case Activation::clamped_swiglu: return g / (1 + std::exp(-1.702 * g));
  }
  return 0;  // check_gated_activation() lets no other pass
}

template <typename T>
void norm_rows(const RmsNorm& args) {
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
      const float factor = args.weight_offset + to_float(weight[i]);
      out[i] = from_float<T>(to_float(x[i]) * scale * factor);
    }
  }
}

// 1 / sqrt(mean of squares + epsilon) of a head.
template <typename T>
float norm_scale(const T* head, std::int64_t head_dim, float epsilon) {
  double sum = 0;
  for (std::int64_t i = 0; i < head_dim; ++i) sum += to_float(head[i]) * to_float(head[i]);
  const float mean = static_cast<float>(sum) / static_cast<float>(head_dim);
  return 1.0f / std::sqrt(mean + epsilon);
}

// What happens to one head of q or k, in float32.
template <typename T>
void norm_and_rotate(const NormRopeStore& args, const T* from, const TensorView& norm,
                     const float* cos_sin, float* to) {
  const std::int64_t head_dim = args.kv.head_dim();
  const float scale = norm.data == nullptr ? 1 : norm_scale(from, head_dim, args.epsilon);
  const auto normed = [&](std::int64_t i) {
    const float x = to_float(from[i]);
    if (norm.data == nullptr) return x;
    return x * scale * (args.weight_offset + to_float(norm.as<T>()[i]));
  };
  const std::int64_t rotary = args.cos_sin.shape[1], half = rotary / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    const float low = normed(i), high = normed(half + i);
    to[i] = low * cosine - high * sine;
    to[half + i] = high * cosine + low * sine;
  }
  for (std::int64_t i = rotary; i < head_dim; ++i) to[i] = normed(i);
}

template <typename T>
void norm_rope_store_rows(const NormRopeStore& args) {
  const std::int64_t head_dim = args.kv.head_dim();
  const std::int64_t kv_heads = args.shares_kv ? 0 : args.kv.kv_heads();
  const std::int64_t block_size = args.kv.block_size();
  float rotated[kMaxHeadDim];
  for (std::int64_t row = 0; row < args.qkv.shape[0]; ++row) {
    T* q = args.qkv.as<T>() + row * args.qkv.shape[1];
    const T* k = q + args.heads * head_dim;
    const T* v = k + kv_heads * head_dim;
    const float* cos_sin =
        args.cos_sin.as<float>() + args.positions.as<std::int32_t>()[row] * args.cos_sin.shape[1];
    for (std::int64_t head = 0; head < args.heads; ++head) {
      T* mine = q + head * head_dim;
      norm_and_rotate(args, mine, args.q_norm, cos_sin, rotated);
      for (std::int64_t i = 0; i < head_dim; ++i) mine[i] = from_float<T>(rotated[i]);
    }
    const std::int64_t slot = args.slot_mapping.as<std::int64_t>()[row];
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      norm_and_rotate(args, k + head * head_dim, args.k_norm, cos_sin, rotated);
      const std::int64_t to = args.kv.offset(slot / block_size, slot % block_size, head);
      const float of_v = args.norms_v ? norm_scale(v + head * head_dim, head_dim, args.epsilon) : 1;
      if (args.kv.keys.dtype == DType::u8) {
        const float of_keys = 1 / key_scale(args.kv_scales, head);
        const float of_values = of_v / value_scale(args.kv_scales, head);
        for (std::int64_t i = 0; i < head_dim; ++i) {
          const float value = to_float(v[head * head_dim + i]);
          args.kv.keys.as<E4m3>()[to + i] = from_float<E4m3>(rotated[i] * of_keys);
          args.kv.values.as<E4m3>()[to + i] = from_float<E4m3>(value * of_values);
        }
        continue;
      }
      T* key = args.kv.keys.as<T>() + to;
      T* value = args.kv.values.as<T>() + to;
      for (std::int64_t i = 0; i < head_dim; ++i) {
        key[i] = from_float<T>(rotated[i]);
        value[i] = from_float<T>(to_float(v[head * head_dim + i]) * of_v);
      }
    }
  }
}

}  // namespace

void gated_activation_reference(const GatedActivation& args) {
  check_gated_activation(args);
  const std::int64_t rows = args.out.shape[0], n = args.out.shape[1];
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* gate = args.x.as<T>() + row * 2 * n;
      const T* up = gate + n;
      T* out = args.out.as<T>() + row * n;
      for (std::int64_t i = 0; i < n; ++i) {
        float g = to_float(gate[i]), u = to_float(up[i]);
        if (args.activation == Activation::clamped_swiglu) {
          if (g > args.limit) g = args.limit;
          if (std::fabs(u) > args.limit) u = std::copysign(args.limit, u);
          u += 1;
        }
        out[i] = from_float<T>(static_cast<float>(activate(args.activation, g)) * u);
      }
    }
  });
}

void rms_norm_reference(const RmsNorm& args) {
  check_rms_norm(args);
  with_element_type(args.x.dtype, [&]<typename T>(T) { norm_rows<T>(args); });
}

void norm_rope_store_reference(const NormRopeStore& args) {
  check_norm_rope_store(args);
  with_element_type(args.qkv.dtype, [&]<typename T>(T) { norm_rope_store_rows<T>(args); });
}

void random_fill_reference(const RandomFill& args) {
  check_random_fill(args);
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    T* out = args.out.as<T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto index = static_cast<std::uint64_t>((args.first_row + row) * args.whole_columns +
                                                      args.first_column + i);
        const RandomKeys keys(args.seed, index >> 32);
        const float unit = keys.unit(static_cast<std::uint32_t>(index));
        out[row * columns + i] = from_float<T>(std::fma(args.width, unit, args.center));
      }
    }
  });
}

void sigmoid_gate_reference(const SigmoidGate& args) {
  check_sigmoid_gate(args);
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    for (std::int64_t i = 0; i < args.x.elements(); ++i) {
      const double gate = to_float(args.gate.as<T>()[i]);
      const double value = to_float(args.x.as<T>()[i]) / (1 + std::exp(-gate));
      args.x.as<T>()[i] = from_float<T>(static_cast<float>(value));
    }
  });
}

void scaled_sum_reference(const ScaledSum& args) {
  check_scaled_sum(args);
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const double factor = args.factor.data == nullptr ? 1 : to_float(args.factor.as<T>()[0]);
    const auto at = [](const TensorView& tensor, std::int64_t row, std::int64_t i) -> T& {
      return tensor.as<T>()[row * tensor.stride[0] + i];
    };
    for (std::int64_t row = 0; row < args.out.shape[0]; ++row) {
      for (std::int64_t i = 0; i < args.out.shape[1]; ++i) {
        const double a = to_float(at(args.a, row, i));
        const double b = args.b.data == nullptr ? 0 : to_float(at(args.b, row, i));
        at(args.out, row, i) = from_float<T>(static_cast<float>((a + b) * args.scale * factor));
      }
    }
  });
}

void soft_cap_reference(const SoftCap& args) {
  check_soft_cap(args);
  for (std::int64_t row = 0; row < args.x.shape[0]; ++row) {
    float* const x = args.x.as<float>() + row * args.x.stride[0];
    for (std::int64_t i = 0; i < args.x.shape[1]; ++i) {
      x[i] = static_cast<float>(args.cap * std::tanh(double{x[i]} / args.cap));
    }
  }
}

}  // namespace nvllm::kernels
