#include "kernels/pointwise/activation.h"

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

// Gated activations on the CPU, eight elements at a time.
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
struct ActivationJob {
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
void submit(const GatedActivation& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t n = args.out.shape[1];
    // An exponential costs about as much as moving four elements.
    submit_rows(stream, args.out.shape[0], 6 * n * sizeof(T),
                ActivationJob<T, kActivation>{args.out.as<T>(), args.x.as<T>(), n, args.limit});
  });
}

}  // namespace

void gated_activation(const GatedActivation& args, Stream& stream) {
  switch (args.activation) {
    case Activation::silu: return submit<Activation::silu>(args, stream);
    case Activation::gelu: return submit<Activation::gelu>(args, stream);
    case Activation::gelu_tanh: return submit<Activation::gelu_tanh>(args, stream);
    case Activation::clamped_swiglu: return submit<Activation::clamped_swiglu>(args, stream);
  }
}

}  // namespace cpu
}  // namespace nvllm::kernels
