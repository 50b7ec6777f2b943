// The epilogue of the small-M GEMM (small_m.cuh): turns its sums into results, with a bias, a
// residual, a gated activation, and what a deferred norm needs.
#pragma once

#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/gemm/sm90/deferred_norm.cuh"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda::small_m {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Eight adjacent outputs of a row.
template <typename T>
__device__ __forceinline__ void add_to(Floats<T>& eight, const Vector<T>& more) {
  const Floats<T> floats = widen(more);
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.element[i] += floats.element[i];
}
template <typename T>
__device__ __forceinline__ void scale(Floats<T>& eight, float factor) {
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.element[i] *= factor;
}
template <typename T>
__device__ __forceinline__ void store_eight(const GemmParams<T>& p, int row, int output,
                                            const Floats<T>& eight) {
  const long long place = row * p.out_stride + output;
  if (p.float_out) {
    const float* from = eight.element;
    float4* out = reinterpret_cast<float4*>(static_cast<float*>(p.out) + place);
    out[0] = make_float4(from[0], from[1], from[2], from[3]);
    out[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    store_vector(static_cast<T*>(p.out) + place, narrow(eight));
  }
}

// Sums of all splits from which a warp computes results: 16 outputs, or 8 gate rows and their up
// rows, of the quads of its block. `at`: the address of the warp's part of the first quad, 16 bytes
// of each thread; four threads have an output and the one 8 further on, for two rows each, the
// first output's before the other's. The next quad follows at `stride` bytes, another block's sums
// at `part` bytes.
struct Quads {
  unsigned at;
  int stride, part;
  int split, splits;  // its quads are split, split + splits, ...
};

// A lane has eight outputs of a row at a time; a warp's 32 lanes have two quads.
template <typename T>
class Plain {
 public:
  __device__ __forceinline__ Plain(const GemmParams<T>& p, const DeferredNorms<T>& norms,
                                   int output, int split, int splits)
      : output_(output + threadIdx.x % 2 * 8),
        row_((lane() / 16 * splits + split) * 8 + lane() / 2 % 8) {
    if (output_ >= p.outputs) return;
    load_residual(p);
    if (norms.next_squares != nullptr) weight_ = load_vector(norms.next_weight + output_);
  }

  // `factors`: of rows, if their norm was deferred. The next norm's rows go to norms.next_weighted,
  // and the sum of squares of each row's 16 outputs to `squares`.
  __device__ __forceinline__ void store(const GemmParams<T>& p, const DeferredNorms<T>& norms,
                                        const Quads& quads, unsigned factors, unsigned squares) {
    const int row_of_quad = lane() / 2 % 8;
    unsigned at = quads.at + lane() / 16 * quads.stride + row_of_quad / 2 * 16 +
                  (lane() % 2 * 2 + row_of_quad % 2) * 4;
#pragma unroll 1
    for (int quad = quads.split; quad * 8 < p.rows; quad += 2 * quads.splits) {
      const bool inside = row_ < p.rows && output_ < p.outputs;
      float square = 0;
      if (inside) {
        Floats<T> sums{};
#pragma unroll 2
        for (int split = 0; split < quads.splits; ++split) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            sums.element[i] += load_shared_float(at + split * quads.part + i * 64);
        }
        if (norms.own_squares != nullptr) scale(sums, load_shared_float(factors + row_ * 4));
        if (p.bias != nullptr) add_to(sums, load_vector(p.bias + output_));
        if (p.residual != nullptr) add_to(sums, residual_);
        store_eight(p, row_, output_, sums);
        if (norms.next_squares != nullptr) {
          const Vector<T> rounded = narrow(sums);
          square = rms_norm_vector(rounded);
          store_vector(norms.next_weighted + static_cast<long long>(row_) * p.outputs + output_,
                       rms_norm_apply(rounded, 1.0f, weight_));
        }
      }
      if (norms.next_squares != nullptr) {
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        if (inside && lane() % 2 == 0) store_shared(squares + row_ * 4, square);
      }
      row_ += quads.splits * 16;
      at += 2 * quads.stride;
      if (output_ < p.outputs) load_residual(p);
    }
  }

 private:
  static __device__ __forceinline__ int lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ void load_residual(const GemmParams<T>& p) {
    if (p.residual != nullptr && row_ < p.rows)
      residual_ = load_vector(p.residual + row_ * p.residual_stride + output_);
  }

  int output_, row_;
  Vector<T> residual_, weight_;  // loaded while the tensor cores work
};

// A lane has 8 gate values of one or two rows at a time.
template <typename T, int kRowsOfLane>
__device__ __forceinline__ void store_gated(const GemmParams<T>& p, bool scaled, int output,
                                            const Quads& quads, unsigned factors) {
  constexpr int kLanes = 8 / kRowsOfLane;  // of a quad
  const int lane = threadIdx.x % 32;
  int row = (lane / kLanes * quads.splits + quads.split) * 8 + lane % kLanes * kRowsOfLane;
  unsigned at = quads.at + lane / kLanes * quads.stride + row % 8 / 2 * 16;
  if (output >= p.outputs) return;
#pragma unroll 1
  for (; row < p.rows; row += quads.splits * 8 * (32 / kLanes), at += 32 / kLanes * quads.stride) {
    Floats<T> gates[kRowsOfLane] = {}, ups[kRowsOfLane] = {};
#pragma unroll 1
    for (int split = 0; split < quads.splits; ++split) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 sums = load_shared(at + split * quads.part + i * 64);
        if constexpr (kRowsOfLane == 2) {
          gates[0].element[i] += sums.x, gates[1].element[i] += sums.y;
          ups[0].element[i] += sums.z, ups[1].element[i] += sums.w;
        } else {
          gates[0].element[i] += lane % 2 == 0 ? sums.x : sums.y;
          ups[0].element[i] += lane % 2 == 0 ? sums.z : sums.w;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      if (row + r >= p.rows) break;
      if (scaled) {
        const float factor = load_shared_float(factors + (row + r) * 4);
        scale(gates[r], factor), scale(ups[r], factor);
      }
      store_vector(static_cast<T*>(p.out) + (row + r) * p.out_stride + output,
                   activate_gated<Activation::silu>(narrow(gates[r]), narrow(ups[r])));
    }
  }
}

// The block that computes the results of a quad, and the location of its sums there.
struct Owner {
  int block = 0, place = 0;

  __device__ __forceinline__ void advance(int splits, int stride) {
    if (++block < splits) return;
    block = 0;
    place += stride;
  }
};

#endif

}  // namespace nvllm::kernels::cuda::small_m
