#include "kernels/linear_attention/testing/references.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/arguments.h"

namespace nvllm::kernels {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// x / sqrt(sum of squares + 1e-6)
template <typename T>
std::vector<double> unit(const T* x, std::int64_t count) {
  std::vector<double> values;
  double squares = 1e-6;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(to_float(x[i]));
    squares += values.back() * values.back();
  }
  for (double& value : values) value /= std::sqrt(squares);
  return values;
}

template <typename T>
void conv_sequence(const CausalConv& args, std::int64_t sequence, std::int64_t channel) {
  const std::int64_t channels = args.out.shape[1], width = args.weight.shape[1];
  const std::int64_t before = width - 1, begin = args.rows.begin(sequence);
  if (begin == args.rows.end(sequence)) return;
  T* const state = args.state.as<T>() + args.rows.slot(sequence) * before * channels + channel;
  std::vector<T> inputs(static_cast<std::size_t>(before), from_float<T>(0));
  if (!args.rows.starts(sequence)) {
    for (std::int64_t i = 0; i < before; ++i) inputs[i] = state[i * channels];
  }
  for (std::int64_t row = begin; row < args.rows.end(sequence); ++row) {
    inputs.push_back(args.x.as<T>()[row * args.x.stride[0] + channel]);
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      sum += double{to_float(args.weight.as<T>()[channel * width + i])} *
             double{to_float(inputs[row - begin + i])};
    }
    args.out.as<T>()[row * channels + channel] =
        from_float<T>(static_cast<float>(sum * sigmoid(sum)));
  }
  for (std::int64_t i = 0; i < before; ++i) {
    state[i * channels] = inputs[inputs.size() - static_cast<std::size_t>(before - i)];
  }
}

template <typename T>
void delta_rule_row(const GatedDeltaRule& args, std::int64_t row, std::int64_t head,
                    std::vector<double>& state) {
  const std::int64_t heads = args.value_heads(), dk = args.dk(), dv = args.dv();
  const T* const qkv = args.qkv.as<T>() + row * args.qkv.shape[1];
  const std::int64_t key_head = head / (heads / args.key_heads);
  const std::vector<double> q = unit(qkv + key_head * dk, dk);
  const std::vector<double> k = unit(qkv + (args.key_heads + key_head) * dk, dk);
  const T* const v = qkv + 2 * args.key_heads * dk + head * dv;
  const float* const ba = args.ba.as<float>() + row * 2 * heads;
  const double beta = sigmoid(double{ba[head]});
  const double a = double{ba[heads + head]} + double{args.dt_bias.as<float>()[head]};
  const double decay =
      std::exp(-std::exp(double{args.a_log.as<float>()[head]}) * std::log1p(std::exp(a)));
  std::vector<double> out(static_cast<std::size_t>(dv));
  double squares = 0;
  for (double& value : state) value *= decay;
  for (std::int64_t j = 0; j < dv; ++j) {
    double kept = 0;
    for (std::int64_t i = 0; i < dk; ++i) kept += state[i * dv + j] * k[i];
    const double change = beta * (double{to_float(v[j])} - kept);
    for (std::int64_t i = 0; i < dk; ++i) {
      state[i * dv + j] += k[i] * change;
      out[j] += state[i * dv + j] * q[i] / std::sqrt(static_cast<double>(dk));
    }
    squares += out[j] * out[j];
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(dv) + double{args.epsilon});
  for (std::int64_t j = 0; j < dv; ++j) {
    const double z = to_float(args.z.as<T>()[row * args.z.stride[0] + head * dv + j]);
    const double value = out[j] * scale * double{args.norm.as<float>()[j]} * z * sigmoid(z);
    args.out.as<T>()[(row * heads + head) * dv + j] = from_float<T>(static_cast<float>(value));
  }
}

template <typename T>
void clear_rows(const TensorView& out, const StateRows& rows, std::int64_t sequence) {
  const std::int64_t columns = out.shape[1];
  std::fill(out.as<T>() + rows.begin(sequence) * columns,
            out.as<T>() + rows.end(sequence) * columns, from_float<T>(0));
}

}  // namespace

void causal_conv_reference(const CausalConv& args) {
  check_causal_conv(args);
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    for (std::int64_t s = 0; s < args.rows.sequences(); ++s) {
      if (args.rows.slot(s) < 0) {
        clear_rows<T>(args.out, args.rows, s);
        continue;
      }
      for (std::int64_t c = 0; c < args.out.shape[1]; ++c) conv_sequence<T>(args, s, c);
    }
  });
}

void gated_delta_rule_reference(const GatedDeltaRule& args) {
  check_gated_delta_rule(args);
  const std::int64_t size = args.dk() * args.dv();
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    for (std::int64_t s = 0; s < args.rows.sequences(); ++s) {
      const std::int64_t slot = args.rows.slot(s);
      if (slot < 0) {
        clear_rows<T>(args.out, args.rows, s);
        continue;
      }
      if (args.rows.begin(s) == args.rows.end(s)) continue;
      for (std::int64_t head = 0; head < args.value_heads(); ++head) {
        float* const there = args.state.as<float>() + (slot * args.value_heads() + head) * size;
        std::vector<double> state(there, there + size);
        if (args.rows.starts(s)) std::ranges::fill(state, 0);
        for (std::int64_t row = args.rows.begin(s); row < args.rows.end(s); ++row) {
          delta_rule_row<T>(args, row, head, state);
        }
        for (std::int64_t i = 0; i < size; ++i) there[i] = static_cast<float>(state[i]);
      }
    }
  });
}

}  // namespace nvllm::kernels
