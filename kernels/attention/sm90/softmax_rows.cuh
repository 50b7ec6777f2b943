// The rows of a consumer thread of attention on Hopper: their scores against a KV tile, the online
// softmax, and the weighted values, all in registers. The loop over the tiles is in consumer.cuh.
#pragma once

#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/sm90/wgmma.cuh"

namespace nvllm::kernels::cuda::sm90 {

// A bound of a thread's sum of weights of a row and a tile: below it all weights fit into T and,
// multiplied by values below 2^80, into floats.
template <typename T>
inline constexpr float kMaxWeight = dtype_of<T> == DType::bf16 ? 0x1p40f : 0x1p14f;

// Whether it holds for any of the four lanes of a row.
__device__ __forceinline__ bool any_of_four(bool holds) {
  unsigned any = holds;
  any |= __shfl_xor_sync(~0u, any, 1);
  any |= __shfl_xor_sync(~0u, any, 2);
  return any != 0;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The registers of a thread (layout: wgmma.cuh): its parts of two rows, their scores against a tile
// and the softmax so far. Scales of scores have kLog2E as a factor.
template <typename T, int D>
struct Rows {
  using Row = typename AttentionTypes<T>::Row;
  using Tile = TileType<T>;

  // One wgmma has up to 128 columns of `out`.
  static constexpr int kPartColumns = D < 128 ? D : 128, kParts = D / kPartColumns;

  float scores[kTokens<D> / 2];
  float out[kParts][kPartColumns / 2];
  unsigned weights[kTokens<D> / 16][4];  // as A operands
  // A weight is 2^(score * scale - reference). The reference of a row is the maximum exponent of
  // the first tile that it attends to. It is kept for later tiles and raised only if weights become
  // too large (needs_rescale()).
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of the weights of this thread's columns
  // Sums of the last tile's weights, in two parts, which add_row_sums() adds to `sum`. They start
  // as infinity, so that the first tile sets the reference.
  float tile_sums[2][2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};

  // The i-th of the thread's values of columns 8 j to 8 j + 7.
  __device__ __forceinline__ float& out_at(int j, int i) {
    return out[j / (kPartColumns / 8)][4 * (j % (kPartColumns / 8)) + i];
  }
  __device__ __forceinline__ float out_at(int j, int i) const {
    return out[j / (kPartColumns / 8)][4 * (j % (kPartColumns / 8)) + i];
  }
  __device__ __forceinline__ void clear_out() {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_at(j, i) = 0;
    }
  }
  __device__ __forceinline__ void hold_out() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) hold(out[part]);
  }

  // scores = q k^T, enqueued.
  __device__ __forceinline__ void multiply_keys(unsigned queries, unsigned keys) {
    const std::uint64_t left = wgmma_descriptor(queries, 16, 1024);
    const std::uint64_t right = wgmma_descriptor(keys, 16, 1024);
    hold(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const unsigned half = k / 4, step = k % 4 * 32;
      wgmma<Tile>(scores, advance_descriptor(left, half * kRows * kRowBytes + step),
                  advance_descriptor(right, half * kTokens<D> * kRowBytes + step), k > 0);
    }
    wgmma_commit();
  }

  // out += weights v, enqueued.
  __device__ __forceinline__ void multiply_values(unsigned values, bool first) {
    constexpr int kPartBytes = kPartColumns / kHalf * kTokens<D> * kRowBytes;
    const std::uint64_t right = wgmma_descriptor(values, kTokens<D> * kRowBytes, 1024);
    hold_out();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTokens<D> / 16; ++k) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        wgmma<Tile>(out[part], weights[k],
                    advance_descriptor(right, part * kPartBytes + k * 16 * kRowBytes),
                    !first || k > 0);
      }
    }
    wgmma_commit();
  }

  // Masks the columns from visible[i] on.
  __device__ __forceinline__ void mask(const int (&visible)[2], int lane) {
#pragma unroll
    for (int j = 0; j < kTokens<D> / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j * 8 + lane % 4 * 2 + i % 2;
        if (column >= visible[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }
  // Masks the columns before first_seen[i].
  __device__ __forceinline__ void mask_before(const int (&first_seen)[2], int lane) {
#pragma unroll
    for (int j = 0; j < kTokens<D> / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j * 8 + lane % 4 * 2 + i % 2;
        if (column < first_seen[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  // Turns the scores of columns 8 * kFrom to 8 * kTo into weights, relative to these references.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void exponentiate(const float (&scale)[2],
                                               const float (&references)[2]) {
#pragma unroll
    for (int j = kFrom; j < kTo; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * j + i];
        score = power_of_2(score * scale[i / 2] - references[i / 2]);
        float& total = tile_sums[i / 2][i % 2];
        total = j == 0 ? score : total + score;
      }
    }
  }

  // Whether a row's weights of the last tile are so large that it needs a new reference, or it had
  // none yet.
  __device__ __forceinline__ bool needs_rescale() const {
    return needs_rescale(0) || needs_rescale(1);
  }

  // Turns all scores of a tile into weights, after rows that need it have taken the maximum
  // exponent so far as their reference; their earlier sums are rescaled. The result of a row does
  // not depend on other rows.
  __device__ __forceinline__ void rescale_and_exponentiate(const float (&scale)[2]) {
    float maxima[2], references[2], rescale[2];
    find_row_max(maxima);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = reference[row];
      if (any_of_four(needs_rescale(row))) reference[row] = fmaxf(before, maxima[row] * scale[row]);
      references[row] = reference_of(reference[row]);
      rescale[row] = power_of_2(before - references[row]);
      sum[row] *= rescale[row];
    }
    exponentiate<0, kTokens<D> / 8>(scale, references);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_at(j, i) *= rescale[i / 2];
    }
  }

  __device__ __forceinline__ void add_row_sums() {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] += tile_sums[row][0] + tile_sums[row][1];
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kTokens<D> / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack<Tile>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
      }
    }
  }

  __device__ __forceinline__ void write(const AttentionRows<T>& part, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      const int packed_row = row + lane / 4 + 8 * i;
      const bool exists = packed_row < part.packed_rows;
      const long long index = part.index(exists ? packed_row : 0);
      part.p.add_sink(index, reference[i], sum[i]);
      float factor = sum[i] == 0 ? 0.0f : 1 / sum[i];
      if constexpr (kIsE4m3<T>) factor *= part.p.value_scale(part.kv_head);
      if (part.p.floats != nullptr) {
        if (exists) write_floats(part.p.floats + index * D + lane % 4 * 2, i, factor);
      } else {
        write_rounded(part.p.out + index * D, i, factor, exists, lane % 4);
      }
      if (exists && part.p.lse != nullptr && lane % 4 == 0) {
        part.p.lse[index] = log_sum_exp(reference[i], sum[i]);
      }
    }
  }

 private:
  // Also true if the sum is NaN.
  __device__ __forceinline__ bool needs_rescale(int row) const {
    return !(tile_sums[row][0] + tile_sums[row][1] <= kMaxWeight<Tile>);
  }

  // The maximum over all columns of a row, which four lanes share.
  __device__ __forceinline__ void find_row_max(float (&maxima)[2]) const {
    // Several independent maxima per row: a single one would be a long chain of dependent
    // instructions.
    constexpr int kAtOnce = 4;
    float new_max[2][kAtOnce];
#pragma unroll
    for (int j = 0; j < kTokens<D> / 8; ++j) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& row_max = new_max[row][j % kAtOnce];
        const float here = fmaxf(scores[4 * j + 2 * row], scores[4 * j + 2 * row + 1]);
        row_max = j < kAtOnce ? here : fmaxf(row_max, here);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      maxima[row] =
          fmaxf(fmaxf(new_max[row][0], new_max[row][1]), fmaxf(new_max[row][2], new_max[row][3]));
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        maxima[row] = fmaxf(maxima[row], __shfl_xor_sync(~0u, maxima[row], lanes));
      }
    }
  }

  // Writes one of the thread's two rows: its two columns of each 8.
  __device__ __forceinline__ void write_floats(float* to, int i, float factor) const {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) =
          make_float2(out_at(j, 2 * i) * factor, out_at(j, 2 * i + 1) * factor);
    }
  }

  // A thread has 4 words of every 32 columns, one of each 8 columns. The four threads of a row
  // exchange words, so that each has 8 adjacent columns.
  __device__ __forceinline__ void write_rounded(Row* to, int i, float factor, bool exists,
                                                int lane_in_row) const {
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      unsigned word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        word[k] = pack<Row>(out_at(j + k, 2 * i) * factor, out_at(j + k, 2 * i + 1) * factor);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const bool upper = (lane_in_row & step) != 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k & step) continue;
          const unsigned got = __shfl_xor_sync(~0u, upper ? word[k] : word[k + step], step);
          (upper ? word[k] : word[k + step]) = got;
        }
      }
      if (exists) {
        *reinterpret_cast<uint4*>(to + (j + lane_in_row) * 8) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }

  template <typename Half>
  __device__ __forceinline__ static unsigned pack(float low, float high) {
    unsigned word;
    if constexpr (dtype_of<Half> == DType::bf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
    return word;
  }
};

#endif

}  // namespace nvllm::kernels::cuda::sm90
