// The causal convolution on the CPU. A task is a sequence and up to 64 of its channels, whose last
// inputs stay in the cache from row to row.
#include "kernels/linear_attention/causal_conv.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/linear_attention/backends.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr std::int64_t kChannels = 64;  // of a task, at most

__m256 silu8(__m256 x) {
  const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus)));
}

// One task. Channels behind the last one are computed as zeros, and not stored.
template <typename T>
class ConvTask {
 public:
  ConvTask(const CausalConv& args, std::int64_t sequence, std::int64_t first_channel)
      : args_(args),
        sequence_(sequence),
        first_(first_channel),
        count_(std::min(args.out.shape[1] - first_channel, kChannels)),
        width_(args.weight.shape[1]) {
    const T* const weight = args.weight.as<T>() + first_ * width_;
    for (std::int64_t c = 0; c < count_; ++c) {
      for (std::int64_t i = 0; i < width_; ++i) weight_[i][c] = to_float(weight[c * width_ + i]);
    }
  }

  void run() {
    const StateRows& rows = args_.rows;
    const bool padding = rows.slot(sequence_) < 0;
    if (!padding && !rows.starts(sequence_)) load_state();
    for (std::int64_t row = rows.begin(sequence_); row < rows.end(sequence_); ++row) {
      T* const out = args_.out.as<T>() + row * args_.out.shape[1] + first_;
      if (padding) {
        std::fill_n(out, count_, from_float<T>(0));
        continue;
      }
      load(args_.x.as<T>() + row * args_.x.stride[0] + first_, input(width_ - 1));
      convolve(out);
      oldest_ = (oldest_ + 1) % width_;
    }
    if (!padding) store_state();
  }

 private:
  // Of the last `width` inputs number i, in the order of time.
  float* input(std::int64_t i) { return inputs_[(oldest_ + i) % width_]; }
  T* state(std::int64_t i) const {
    const std::int64_t row = args_.rows.slot(sequence_) * (width_ - 1) + i;
    return args_.state.as<T>() + row * args_.out.shape[1] + first_;
  }

  void load(const T* from, float* to) const {
    for (std::int64_t c = 0; c < count_; ++c) to[c] = to_float(from[c]);
  }
  void load_state() {
    for (std::int64_t i = 0; i + 1 < width_; ++i) load(state(i), input(i));
  }
  void store_state() {
    for (std::int64_t i = 0; i + 1 < width_; ++i) {
      for (std::int64_t c = 0; c < count_; ++c) state(i)[c] = from_float<T>(input(i)[c]);
    }
  }

  void convolve(T* out) {
    for (std::int64_t c = 0; c < count_; c += kLanes) {
      __m256 sum = _mm256_setzero_ps();
      for (std::int64_t i = 0; i < width_; ++i) {
        sum = _mm256_fmadd_ps(load8(weight_[i] + c), load8(input(i) + c), sum);
      }
      if (count_ - c >= kLanes) {
        store8(out + c, silu8(sum));
      } else {
        store_some(out + c, silu8(sum), count_ - c);
      }
    }
  }

  const CausalConv& args_;
  const std::int64_t sequence_, first_, count_, width_;
  std::int64_t oldest_ = 0;
  float weight_[kMaxConvWidth][kChannels] = {};
  float inputs_[kMaxConvWidth][kChannels] = {};
};

}  // namespace

void causal_conv(const CausalConv& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t parts = divide_up(args.out.shape[1], kChannels);
    // About as many rows for each sequence.
    const std::int64_t rows = divide_up(args.out.shape[0], args.rows.sequences());
    const auto bytes = 2 * rows * kChannels * static_cast<std::int64_t>(sizeof(T));
    submit_rows(stream, args.rows.sequences() * parts, bytes,
                [args, parts](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t task = begin; task < end; ++task) {
                    ConvTask<T>(args, task / parts, task % parts * kChannels).run();
                  }
                });
  });
}

}  // namespace nvllm::kernels::cpu
