// The causal convolution on the CPU. A task is a sequence and up to 64 of its channels, whose last
// inputs stay in the cache from row to row.
#include <algorithm>

#include "base/math.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/linear_attention/backends.h"
#include "kernels/linear_attention/linear_attention.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr std::int64_t kChannels = 64;  // of a task, at most

__m256 silu8(__m256 x) {
  const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus)));
}

// Rows of x and of the state as floats, and back.
template <typename T>
void load(const T* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store8(to + i, load8(from + i));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

template <typename T>
void store(const float* from, T* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store8(to + i, load8(from + i));
  for (; i < count; ++i) to[i] = from_float<T>(from[i]);
}

// One task. Channels after the last one are zeros, and are not stored.
template <typename T>
class ConvTask {
 public:
  ConvTask(const CausalConv& args, std::int64_t sequence, std::int64_t first_channel)
      : args_(args),
        sequence_(sequence),
        first_(first_channel),
        count_(std::min(args.out.shape[1] - first_channel, kChannels)),
        width_(args.weight.shape[1]) {
    if (count_ < kChannels) {
      std::fill_n(&weight_[0][0], kMaxConvWidth * kChannels, 0.0f);
      std::fill_n(&inputs_[0][0], kMaxConvWidth * kChannels, 0.0f);
    }
    float weight[kMaxConvWidth * kChannels];  // [channel][tap], as they lie in memory
    load(args.weight.as<T>() + first_ * width_, weight, count_ * width_);
    for (std::int64_t c = 0; c < count_; ++c) {
      for (std::int64_t i = 0; i < width_; ++i) weight_[i][c] = weight[c * width_ + i];
    }
  }

  void run() {
    const StateRows& rows = args_.rows;
    if (rows.slot(sequence_) < 0) return clear();
    if (rows.begin(sequence_) == rows.end(sequence_)) return;
    load_state();
    for (std::int64_t row = rows.begin(sequence_); row < rows.end(sequence_); ++row) {
      load(args_.x.as<T>() + row * args_.x.stride[0] + first_, input(width_ - 1), count_);
      convolve(out(row));
      oldest_ = (oldest_ + 1) % width_;
    }
    store_state();
  }

 private:
  T* out(std::int64_t row) const { return args_.out.as<T>() + row * args_.out.shape[1] + first_; }
  // Input number i of the last `width` ones, in the order of time.
  float* input(std::int64_t i) { return inputs_[(oldest_ + i) % width_]; }
  T* state(std::int64_t i) const {
    const std::int64_t row = args_.rows.slot(sequence_) * (width_ - 1) + i;
    return args_.state.as<T>() + row * args_.out.shape[1] + first_;
  }

  // Writes zeros to the outputs of padding.
  void clear() const {
    for (std::int64_t row = args_.rows.begin(sequence_); row < args_.rows.end(sequence_); ++row) {
      std::fill_n(out(row), count_, from_float<T>(0));
    }
  }
  void load_state() {
    for (std::int64_t i = 0; i + 1 < width_; ++i) {
      if (args_.rows.starts(sequence_)) {
        std::fill_n(input(i), count_, 0.0f);
      } else {
        load(state(i), input(i), count_);
      }
    }
  }
  void store_state() {
    for (std::int64_t i = 0; i + 1 < width_; ++i) store(input(i), state(i), count_);
  }

  void convolve(T* out) {
    const float* inputs[kMaxConvWidth];
    for (std::int64_t i = 0; i < width_; ++i) inputs[i] = input(i);
    for (std::int64_t c = 0; c < count_; c += kLanes) {
      __m256 sum = _mm256_setzero_ps();
      for (std::int64_t i = 0; i < width_; ++i) {
        sum = _mm256_fmadd_ps(load8(weight_[i] + c), load8(inputs[i] + c), sum);
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
  // Not set where all channels are used, before they are loaded.
  float weight_[kMaxConvWidth][kChannels];
  float inputs_[kMaxConvWidth][kChannels];
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
