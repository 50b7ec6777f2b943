// The checks of the element-wise operations, and their CPU versions, eight elements at a time.
#include "kernels/pointwise/elementwise.h"

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::silu: return "silu";
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::clamped_swiglu: return "clamped_swiglu";
  }
  return "?";
}

void check_gated_activation(const GatedActivation& args) {
  constexpr Arguments check("gated_activation");
  check.require_floats(args.out, "out", 2, "[rows, n]");
  check.require_dense(args.out, "out");
  check.require_dense(args.x, "x", args.out.dtype, {args.out.shape[0], 2 * args.out.shape[1]});
  if (args.activation > Activation::clamped_swiglu) {
    fail("gated_activation: activation ", static_cast<int>(args.activation), " is none");
  }
  if (args.activation == Activation::clamped_swiglu && !(args.limit > 0)) {
    fail("gated_activation: limit is ", args.limit, "; clamped_swiglu needs a positive one");
  }
}

void gated_activation(const GatedActivation& args, Stream& stream) {
  check_gated_activation(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, gated_activation(args, stream));
}

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

void check_scaled_sum(const ScaledSum& args) {
  constexpr Arguments check("scaled_sum");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  const auto check_rows = [&](const TensorView& tensor, const char* name) {
    check.require(tensor, name, args.out.dtype, {rows, columns});
    if (rows * columns == 0) return;
    TensorView row = tensor;
    row.shape[0] = 1;
    check.require_dense(row, name);
    if (rows > 1 && tensor.stride[0] < columns) {
      fail("scaled_sum: ", name, " is ", tensor.describe(), " with rows ", tensor.stride[0],
           " elements apart; they overlap");
    }
  };
  check_rows(args.out, "out");
  check_rows(args.a, "a");
  if (args.b.data != nullptr) check_rows(args.b, "b");
  if (args.factor.data != nullptr) check.require_dense(args.factor, "factor", args.out.dtype, {1});
}

void scaled_sum(const ScaledSum& args, Stream& stream) {
  check_scaled_sum(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, scaled_sum(args, stream));
}

void check_soft_cap(const SoftCap& args) {
  constexpr Arguments check("soft_cap");
  check.require_floats(args.x, "x", 2, "[rows, columns]");
  check.require(args.x, "x", DType::f32, {args.x.shape[0], args.x.shape[1]});
  if (args.x.elements() > 0) check.require_memory(args.x, "x");
  if (args.x.stride[1] != 1 || args.x.stride[0] < args.x.shape[1]) {
    fail("soft_cap: x is ", args.x.describe(), "; the elements of a row must be dense");
  }
  if (!(args.cap > 0)) fail("soft_cap: cap is ", args.cap, "; it must be positive");
}

void soft_cap(const SoftCap& args, Stream& stream) {
  check_soft_cap(args);
  if (args.x.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, soft_cap(args, stream));
}

namespace cpu {
namespace {

// The quotient g / (1 + e^-g) itself, not g times 1 / (1 + e^-g), so that minus infinity gives
// NaN, as in the definition.
template <Activation kActivation>
__m256 activate8(__m256 g) {
  if constexpr (kActivation == Activation::gelu) return _mm256_mul_ps(g, normal_share8(g));
  __m256 minus = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
  if constexpr (kActivation == Activation::gelu_tanh) {
    // (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
    const __m256 square = _mm256_mul_ps(g, g);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 inner = _mm256_fmadd_ps(square, _mm256_set1_ps(0.044715f), one);
    minus = _mm256_mul_ps(_mm256_mul_ps(minus, _mm256_set1_ps(1.5957691216f)), inner);
  }
  if constexpr (kActivation == Activation::clamped_swiglu) {
    minus = _mm256_mul_ps(minus, _mm256_set1_ps(kClampedSwigluAlpha));
  }
  return _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus)));
}

// activation(gate) * up. NaN stays NaN: the second operand is the result if one is none.
template <Activation kActivation>
__m256 gate8(__m256 gate, __m256 up, float limit) {
  if constexpr (kActivation == Activation::clamped_swiglu) {
    const __m256 max = _mm256_set1_ps(limit);
    gate = _mm256_min_ps(max, gate);
    up = _mm256_max_ps(_mm256_set1_ps(-limit), _mm256_min_ps(max, up));
    up = _mm256_add_ps(up, _mm256_set1_ps(1.0f));
  }
  return _mm256_mul_ps(activate8<kActivation>(gate), up);
}

template <typename T, Activation kActivation>
struct GatedActivationJob {
  T* out;
  const T* x;
  std::int64_t n;
  float limit;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* gate = x + row * 2 * n;
      const T* up = gate + n;
      T* to = out + row * n;
      std::int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        store8(to + i, gate8<kActivation>(load8(gate + i), load8(up + i), limit));
      }
      if (i == n) continue;
      const std::int64_t left = n - i;
      store_some(to + i,
                 gate8<kActivation>(load_some(gate + i, left), load_some(up + i, left), limit),
                 left);
    }
  }
};

template <Activation kActivation>
void submit_gated_activation(const GatedActivation& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t n = args.out.shape[1];
    // An exponential costs about as much as moving four elements.
    submit_rows(
        stream, args.out.shape[0], 6 * n * sizeof(T),
        GatedActivationJob<T, kActivation>{args.out.as<T>(), args.x.as<T>(), n, args.limit});
  });
}

__m256 sigmoid_gate8(__m256 x, __m256 gate) {
  const __m256 minus = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus)));
}

template <typename T>
struct SigmoidGateJob {
  T* x;
  const T* gate;
  std::int64_t columns;

  void operator()(std::int64_t begin, std::int64_t end) const {
    std::int64_t i = begin * columns;
    for (; i + kLanes <= end * columns; i += kLanes) {
      store8(x + i, sigmoid_gate8(load8(x + i), load8(gate + i)));
    }
    const std::int64_t left = end * columns - i;
    if (left == 0) return;
    store_some(x + i, sigmoid_gate8(load_some(x + i, left), load_some(gate + i, left)), left);
  }
};

// A tensor whose rows may lie apart.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;

  explicit Rows(const TensorView& tensor) : data(tensor.as<T>()), stride(tensor.stride[0]) {}
  T* row(std::int64_t number) const { return data + number * stride; }
};

template <typename T>
struct ScaledSumJob {
  Rows<T> out, a, b;  // b.data == nullptr: zeros
  std::int64_t columns;
  float scale;
  const T* factor;  // nullptr: 1

  void operator()(std::int64_t begin, std::int64_t end) const {
    const __m256 by = _mm256_set1_ps(factor == nullptr ? scale : scale * to_float(*factor));
    for (std::int64_t row = begin; row < end; ++row) {
      T* const to = out.row(row);
      const T* const x = a.row(row);
      const T* const y = b.data == nullptr ? nullptr : b.row(row);
      std::int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) {
        const __m256 sum = y == nullptr ? load8(x + i) : _mm256_add_ps(load8(x + i), load8(y + i));
        store8(to + i, _mm256_mul_ps(sum, by));
      }
      const std::int64_t left = columns - i;
      if (left == 0) continue;
      __m256 sum = load_some(x + i, left);
      if (y != nullptr) sum = _mm256_add_ps(sum, load_some(y + i, left));
      store_some(to + i, _mm256_mul_ps(sum, by), left);
    }
  }
};

// tanh(x) = 1 - 2 / (e^(2x) + 1)
__m256 soft_cap8(__m256 x, float cap) {
  const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f);
  const __m256 power = exp8(_mm256_mul_ps(x, _mm256_set1_ps(2 / cap)));
  const __m256 rest = _mm256_div_ps(two, _mm256_add_ps(power, one));
  return _mm256_mul_ps(_mm256_set1_ps(cap), _mm256_sub_ps(one, rest));
}

struct SoftCapJob {
  float* x;
  std::int64_t stride, columns;
  float cap;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = x + r * stride;
      std::int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) store8(row + i, soft_cap8(load8(row + i), cap));
      if (i == columns) continue;
      store_some(row + i, soft_cap8(load_some(row + i, columns - i), cap), columns - i);
    }
  }
};

}  // namespace

void gated_activation(const GatedActivation& args, Stream& stream) {
  switch (args.activation) {
    case Activation::silu: return submit_gated_activation<Activation::silu>(args, stream);
    case Activation::gelu: return submit_gated_activation<Activation::gelu>(args, stream);
    case Activation::gelu_tanh: return submit_gated_activation<Activation::gelu_tanh>(args, stream);
    case Activation::clamped_swiglu:
      return submit_gated_activation<Activation::clamped_swiglu>(args, stream);
  }
}

void sigmoid_gate(const SigmoidGate& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.x.shape[1];
    submit_rows(stream, args.x.shape[0], 6 * columns * sizeof(T),
                SigmoidGateJob<T>{args.x.as<T>(), args.gate.as<T>(), columns});
  });
}

void scaled_sum(const ScaledSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.out.shape[1];
    submit_rows(stream, args.out.shape[0], 3 * columns * sizeof(T),
                ScaledSumJob<T>{Rows<T>(args.out), Rows<T>(args.a), Rows<T>(args.b), columns,
                                args.scale, args.factor.as<T>()});
  });
}

void soft_cap(const SoftCap& args, Stream& stream) {
  const std::int64_t columns = args.x.shape[1];
  // An exponential costs about as much as moving four elements.
  submit_rows(stream, args.x.shape[0], 6 * columns * static_cast<std::int64_t>(sizeof(float)),
              SoftCapJob{args.x.as<float>(), args.x.stride[0], columns, args.cap});
}

}  // namespace cpu
}  // namespace nvllm::kernels
