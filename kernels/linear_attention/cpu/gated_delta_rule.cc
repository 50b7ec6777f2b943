// The gated delta rule on the CPU. A task is a sequence and one of its value heads: token by token
// it reads the head's state twice and writes it once, up to 32 columns at a time in registers.
#include <algorithm>
#include <cmath>

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/linear_attention/backends.h"
#include "kernels/linear_attention/linear_attention.h"

namespace nvllm::kernels::cpu {
namespace {

// The values of one head in one row.
struct Token {
  float q[kMaxStateDim], k[kMaxStateDim], v[kMaxStateDim];
  float beta, decay;
};

float sum_of_squares(const float* x, std::int64_t count) {
  __m256 squares = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    squares = _mm256_fmadd_ps(load8(x + i), load8(x + i), squares);
  }
  return sum8(squares);
}

template <typename T>
void load(const T* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) store8(to + i, load8(from + i));
}

void scale(float* x, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

// log(1 + e^x)
float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
}

// 8 * kVectors columns of the state, which is [dk, dv], from `column` on.
template <int kVectors>
void step_columns(float* state, const Token& token, std::int64_t dk, std::int64_t dv,
                  std::int64_t column, float* out) {
  __m256 kept[kVectors], sum[kVectors];
  for (int n = 0; n < kVectors; ++n) kept[n] = sum[n] = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < dk; ++i) {
    const __m256 k = _mm256_set1_ps(token.k[i]);
    const float* const row = state + i * dv + column;
    for (int n = 0; n < kVectors; ++n) {
      kept[n] = _mm256_fmadd_ps(k, load8(row + n * kLanes), kept[n]);
    }
  }
  const __m256 decay = _mm256_set1_ps(token.decay), beta = _mm256_set1_ps(token.beta);
  __m256 change[kVectors];
  for (int n = 0; n < kVectors; ++n) {
    const __m256 v = load8(token.v + column + n * kLanes);
    change[n] = _mm256_mul_ps(beta, _mm256_fnmadd_ps(decay, kept[n], v));
  }
  for (std::int64_t i = 0; i < dk; ++i) {
    const __m256 k = _mm256_set1_ps(token.k[i]), q = _mm256_set1_ps(token.q[i]);
    float* const row = state + i * dv + column;
    for (int n = 0; n < kVectors; ++n) {
      const __m256 kept_here = _mm256_mul_ps(decay, load8(row + n * kLanes));
      const __m256 next = _mm256_fmadd_ps(k, change[n], kept_here);
      store8(row + n * kLanes, next);
      sum[n] = _mm256_fmadd_ps(q, next, sum[n]);
    }
  }
  for (int n = 0; n < kVectors; ++n) store8(out + column + n * kLanes, sum[n]);
}

void step_state(float* state, const Token& token, std::int64_t dk, std::int64_t dv, float* out) {
  constexpr int kVectors = 4;
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= dv; column += kVectors * kLanes) {
    step_columns<kVectors>(state, token, dk, dv, column, out);
  }
  for (; column < dv; column += kLanes) step_columns<1>(state, token, dk, dv, column, out);
}

// One task.
template <typename T>
class HeadTask {
 public:
  HeadTask(const GatedDeltaRule& args, std::int64_t sequence, std::int64_t head)
      : args_(args),
        sequence_(sequence),
        head_(head),
        heads_(args.value_heads()),
        dk_(args.dk()),
        dv_(args.dv()) {}

  void run() const {
    const StateRows& rows = args_.rows;
    const std::int64_t slot = rows.slot(sequence_), begin = rows.begin(sequence_);
    if (begin == rows.end(sequence_)) return;
    float* const state = args_.state.as<float>() + (slot * heads_ + head_) * dk_ * dv_;
    if (slot >= 0 && rows.starts(sequence_)) {
      std::fill_n(state, dk_ * dv_, 0.0f);
    }
    for (std::int64_t row = begin; row < rows.end(sequence_); ++row) {
      T* const out = args_.out.as<T>() + (row * heads_ + head_) * dv_;
      if (slot < 0) {
        std::fill_n(out, dv_, from_float<T>(0));
        continue;
      }
      float sums[kMaxStateDim];
      step_state(state, token(row), dk_, dv_, sums);
      norm_and_gate(sums, row, out);
    }
  }

 private:
  Token token(std::int64_t row) const {
    Token token;
    const std::int64_t key_head = head_ / (heads_ / args_.key_heads);
    const T* const q = args_.qkv.as<T>() + row * args_.qkv.shape[1] + key_head * dk_;
    const T* const k = q + args_.key_heads * dk_;
    const T* const v = args_.qkv.as<T>() + row * args_.qkv.shape[1] + 2 * args_.key_heads * dk_;
    load(q, token.q, dk_);
    load(k, token.k, dk_);
    load(v + head_ * dv_, token.v, dv_);
    constexpr float kEpsilon = 1e-6f;
    const float dk = static_cast<float>(dk_);
    scale(token.q, dk_, 1 / (std::sqrt(sum_of_squares(token.q, dk_) + kEpsilon) * std::sqrt(dk)));
    scale(token.k, dk_, 1 / std::sqrt(sum_of_squares(token.k, dk_) + kEpsilon));
    const float* const ba = args_.ba.as<float>() + row * 2 * heads_;
    const float step = softplus(ba[heads_ + head_] + args_.dt_bias.as<float>()[head_]);
    token.beta = sigmoid(ba[head_]);
    token.decay = std::exp(-std::exp(args_.a_log.as<float>()[head_]) * step);
    return token;
  }

  void norm_and_gate(const float* sums, std::int64_t row, T* out) const {
    const T* const z = args_.z.as<T>() + row * args_.z.stride[0] + head_ * dv_;
    const float mean = sum_of_squares(sums, dv_) / static_cast<float>(dv_);
    const __m256 scales = _mm256_set1_ps(1 / std::sqrt(mean + args_.epsilon));
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    for (std::int64_t i = 0; i < dv_; i += kLanes) {
      const __m256 gate = load8(z + i);
      const __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(one, exp8(_mm256_xor_ps(gate, sign))));
      const __m256 normed =
          _mm256_mul_ps(_mm256_mul_ps(load8(sums + i), scales), load8(args_.norm.as<float>() + i));
      store8(out + i, _mm256_mul_ps(normed, silu));
    }
  }

  const GatedDeltaRule& args_;
  const std::int64_t sequence_, head_, heads_, dk_, dv_;
};

}  // namespace

void gated_delta_rule(const GatedDeltaRule& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t heads = args.value_heads();
    submit_rows(stream, args.rows.sequences() * heads, 4 * args.dk() * args.dv(),
                [args, heads](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t task = begin; task < end; ++task) {
                    HeadTask<T>(args, task / heads, task % heads).run();
                  }
                });
  });
}

}  // namespace nvllm::kernels::cpu
