// The causal convolution on the GPU. A thread processes 16 bytes of channels and a tile of the
// step's rows; the last inputs of a sequence stay in its registers from row to row.
//
// Only the block with a sequence's first row reads and writes the sequence's state; it also
// computes the following rows that need the state, if they belong to another tile.
#include "base/math.h"
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/linear_attention/backends.h"
#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/sm80/sequences.cuh"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCommonWidth = 4;
// Rows of a tile: fewer give more blocks; more read fewer inputs twice.
constexpr std::int64_t kFewRows = 1024, kTileRows = 16;

template <typename T>
struct Params {
  T* out;
  const T* x;
  const T* weight;
  T* state;
  Sequences sequences;
  long long rows, channels, x_stride;
  int width, tile_rows;
};

// Inputs and taps of a thread's channels; for widths below kWidth the first taps are zero.
template <typename T, int kWidth>
class Convolution {
 public:
  static constexpr int kElements = Vector<T>::kElements;

  __device__ __forceinline__ Convolution(const Params<T>& p, long long channel)
      : p_(p), channel_(channel), absent_(kWidth - p.width) {
    for (int e = 0; e < kElements; ++e) {
      const bool inside = channel + e < p.channels;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        weight_[i].element[e] =
            inside && i >= absent_ ? widen(p.weight[(channel + e) * p.width + i - absent_]) : 0.0f;
      }
    }
  }

  // Rows [first, last) of a sequence that begins before them.
  __device__ __forceinline__ void run(long long first, long long last) {
#pragma unroll
    for (int i = 1; i < kWidth; ++i) {
      if (i > absent_) inputs_[i] = input(first - kWidth + i);
    }
    rows(first, last);
  }

  // The rows before `last` of a sequence with rows [begin, end), and its state.
  __device__ __forceinline__ void run_first(long long begin, long long end, long long last,
                                            int slot, bool starts) {
    const int before = p_.width - 1;
    T* const state = p_.state + static_cast<long long>(slot) * before * p_.channels + channel_;
    Floats<T> old[kWidth];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) {
      old[i] = Floats<T>{};
      if (i > absent_ && !starts) {
        old[i] = widen(load(state + (i - 1 - absent_) * p_.channels));
      }
      inputs_[i] = old[i];
    }
    rows(begin, last);
    const int count = static_cast<int>(end - begin < before ? end - begin : before);
#pragma unroll
    for (int i = 1; i < kWidth; ++i) {  // old inputs that remain among the last ones
      if (i <= absent_ + count) continue;
      store(state + (i - 1 - absent_ - count) * p_.channels, narrow(old[i]));
    }
    for (int i = 0; i < count; ++i) {
      store(state + (before - count + i) * p_.channels, load(x(end - count + i)));
    }
  }

  __device__ __forceinline__ void clear(long long first, long long last) {
    for (; first < last; ++first) store(p_.out + first * p_.channels + channel_, Vector<T>{});
  }

 private:
  __device__ __forceinline__ int count() const {
    const long long left = p_.channels - channel_;
    return static_cast<int>(left < kElements ? left : kElements);
  }
  __device__ __forceinline__ Vector<T> load(const T* from) const {
    if (kWidth == kCommonWidth) return load_vector(from);
    return load_elements(from, count());
  }
  __device__ __forceinline__ void store(T* to, const Vector<T>& value) const {
    if (kWidth == kCommonWidth) return store_vector(to, value);
    store_elements(to, value, count());
  }
  __device__ __forceinline__ const T* x(long long row) const {
    return p_.x + row * p_.x_stride + channel_;
  }
  __device__ __forceinline__ Floats<T> input(long long row) const {
    return widen(load(x(row)));
  }

  // Continues from inputs_[1] to inputs_[kWidth - 1].
  __device__ __forceinline__ void rows(long long first, long long last) {
    Vector<T> next = first < last ? load(x(first)) : Vector<T>{};
    for (long long row = first; row < last; ++row) {
#pragma unroll
      for (int i = 0; i + 1 < kWidth; ++i) inputs_[i] = inputs_[i + 1];
      inputs_[kWidth - 1] = widen(next);
      if (row + 1 < last) next = load(x(row + 1));
      Floats<T> sum{};
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          sum.element[e] = fmaf(weight_[i].element[e], inputs_[i].element[e], sum.element[e]);
        }
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        sum.element[e] = activate<T, Activation::silu>(sum.element[e]);
      }
      store(p_.out + row * p_.channels + channel_, narrow(sum));
    }
  }

  const Params<T>& p_;
  const long long channel_;
  const int absent_;
  Floats<T> weight_[kWidth];
  Floats<T> inputs_[kWidth] = {};
};

// kCommonWidth: exactly that width, and channels in whole vectors at multiples of 16 bytes.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) causal_conv_kernel(const Params<T> p) {
  pdl_begin();
  const long long vector = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  const long long channel = vector * Vector<T>::kElements;
  if (channel >= p.channels) return;
  const long long tile = static_cast<long long>(blockIdx.y) * p.tile_rows;
  const long long tile_end = tile + p.tile_rows < p.rows ? tile + p.tile_rows : p.rows;
  Convolution<T, kWidth> convolution(p, channel);
  for (int s = p.sequences.of_row(tile); s < p.sequences.count; ++s) {
    const long long begin = p.sequences.begin(s), end = p.sequences.begin(s + 1);
    if (begin >= tile_end) return;
    const long long with_state = begin + p.width - 1;
    if (begin >= tile) {
      const long long tile_last = with_state > tile_end ? with_state : tile_end;
      const long long last = end < tile_last ? end : tile_last;
      const int slot = p.sequences.slots[s];
      if (slot < 0) {
        convolution.clear(begin, last);
      } else if (begin < end) {
        convolution.run_first(begin, end, last, slot, p.sequences.starts(s));
      }
    } else {
      const long long first = with_state > tile ? with_state : tile;
      const long long last = end < tile_end ? end : tile_end;
      if (first >= last) continue;
      if (p.sequences.slots[s] < 0) {
        convolution.clear(first, last);
      } else {
        convolution.run(first, last);
      }
    }
  }
}

}  // namespace

void causal_conv(const CausalConv& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr std::int64_t kElements = Vector<T>::kElements;
    const std::int64_t rows = args.out.shape[0], channels = args.out.shape[1];
    const std::int64_t width = args.weight.shape[1];
    const std::int64_t tile_rows = rows <= kFewRows ? 1 : kTileRows;
    const bool common = width == kCommonWidth && channels % kElements == 0 &&
                        args.x.stride[0] % kElements == 0 && args.out.aligned(16) &&
                        args.x.aligned(16) && args.state.aligned(16);
    const auto kernel =
        common ? causal_conv_kernel<T, kCommonWidth> : causal_conv_kernel<T, kMaxConvWidth>;
    const dim3 grid(blocks_for(divide_up(channels, kElements), kThreads),
                    blocks_for(rows, tile_rows));
    launch_with_pdl("launching causal_conv", kernel, grid, kThreads, nvllm::cuda::native(stream),
                    Params<T>{.out = args.out.as<T>(),
                              .x = args.x.as<const T>(),
                              .weight = args.weight.as<const T>(),
                              .state = args.state.as<T>(),
                              .sequences = sequences_of(args.rows),
                              .rows = rows,
                              .channels = channels,
                              .x_stride = args.x.stride[0],
                              .width = static_cast<int>(width),
                              .tile_rows = static_cast<int>(tile_rows)});
  });
}

}  // namespace nvllm::kernels::cuda
