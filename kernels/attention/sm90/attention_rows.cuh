// What a consumer warpgroup of attention on Hopper has in registers: 64 packed rows, their scores against a
// tile of tokens, and the softmax so far. See attention_prefill_sm90.cu.
#pragma once

#include "kernels/attention/sm90/attention_tiles.cuh"
#include "kernels/common/sm90/wgmma.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What this thread has of them (wgmma.cuh): parts of two rows.
template <typename T, int D>
struct Rows {
  float scores[kTokens / 2];
  float out[D / 2];
  unsigned weights[kTokens / 16][4];  // as left factors
  // A weight is 2^(score * scale - reference), whose reference is the highest exponent of the first tile that the row
  // sees. It stays as tiles go by: a higher one takes its place only where weights become too large (too_heavy()).
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of the weights of this thread's columns
  // Of the last tile's weights, in two parts, which add_up() adds to `sum`. At first as if they were too heavy.
  float newest[2][2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};

  // scores = q k^T, enqueued.
  __device__ __forceinline__ void multiply_keys(unsigned queries, unsigned keys) {
    const std::uint64_t left = wgmma_factor(queries, 16, 1024);
    const std::uint64_t right = wgmma_factor(keys, 16, 1024);
    hold(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const unsigned half = k / 4, step = k % 4 * 32;
      wgmma<T>(scores, wgmma_factor_behind(left, half * kRows * kRowBytes + step),
               wgmma_factor_behind(right, half * kTokens * kRowBytes + step), k > 0);
    }
    wgmma_commit();
  }

  // out += weights v, enqueued.
  __device__ __forceinline__ void multiply_values(unsigned values, bool first) {
    const std::uint64_t right = wgmma_factor(values, kTokens * kRowBytes, 1024);
    hold(out);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      wgmma<T>(out, weights[k], wgmma_factor_behind(right, k * 16 * kRowBytes), !first || k > 0);
    }
    wgmma_commit();
  }

  // Columns from visible[i] on do not count.
  __device__ __forceinline__ void mask(const int (&visible)[2], int lane) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j * 8 + lane % 4 * 2 + i % 2;
        if (column >= visible[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  // Scores of columns 8 * from to 8 * to become weights, relative to these references.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void weigh(float scale, const float (&references)[2]) {
#pragma unroll
    for (int j = kFrom; j < kTo; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * j + i];
        score = power_of_2(score * scale - references[i / 2]);
        float& total = newest[i / 2][i % 2];
        total = j == 0 ? score : total + score;
      }
    }
  }

  // Whether a row's weights of the last tile are so large that it needs another reference, or it had none.
  __device__ __forceinline__ bool too_heavy() const {
    return too_heavy(0) || too_heavy(1);
  }

  // All of a tile's scores become weights, after rows that need it have taken the highest exponent so far as their
  // reference; what they added up before fades. What becomes of a row does not depend on others.
  __device__ __forceinline__ void weigh_anew(float scale) {
    float most[2], references[2], fade[2];
    find_highest(most);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = reference[row];
      unsigned raised = too_heavy(row);
      raised |= __shfl_xor_sync(~0u, raised, 1);
      raised |= __shfl_xor_sync(~0u, raised, 2);
      if (raised) reference[row] = fmaxf(before, most[row] * scale);
      references[row] = reference_of(reference[row]);
      fade[row] = power_of_2(before - references[row]);
      sum[row] *= fade[row];
    }
    weigh<0, kTokens / 8>(scale, references);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * j + i] *= fade[i / 2];
    }
  }

  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] += newest[row][0] + newest[row][1];
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
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
      const float factor = sum[i] == 0 ? 0.0f : 1 / sum[i];
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
  // Of a thread's weights of a row and a tile: all fit into T, and their products with values below 2^80 into floats.
  static constexpr float kHeaviest = dtype_of<T> == DType::bf16 ? 0x1p40f : 0x1p14f;

  // Also if it is no number.
  __device__ __forceinline__ bool too_heavy(int row) const {
    return !(newest[row][0] + newest[row][1] <= kHeaviest);
  }

  // Of all of a row's columns, which four lanes have.
  __device__ __forceinline__ void find_highest(float (&most)[2]) const {
    // Several numbers of each row at a time: one after the other would wait for the one before.
    constexpr int kAtOnce = 4;
    float higher[2][kAtOnce];
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& highest = higher[row][j % kAtOnce];
        const float here = fmaxf(scores[4 * j + 2 * row], scores[4 * j + 2 * row + 1]);
        highest = j < kAtOnce ? here : fmaxf(highest, here);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      most[row] =
          fmaxf(fmaxf(higher[row][0], higher[row][1]), fmaxf(higher[row][2], higher[row][3]));
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        most[row] = fmaxf(most[row], __shfl_xor_sync(~0u, most[row], lanes));
      }
    }
  }

  // A row's results, one of two: this thread's columns of each 8.
  __device__ __forceinline__ void write_floats(float* to, int i, float factor) const {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) =
          make_float2(out[4 * j + 2 * i] * factor, out[4 * j + 2 * i + 1] * factor);
    }
  }

  // Of 32 columns a thread has 4 words, of each 8 columns one; the four threads of a row exchange them so that each
  // has 8 columns that follow each other.
  __device__ __forceinline__ void write_rounded(T* to, int i, float factor, bool exists,
                                                int place) const {
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      unsigned word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        word[k] = pack(out[4 * (j + k) + 2 * i] * factor, out[4 * (j + k) + 2 * i + 1] * factor);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const bool upper = (place & step) != 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k & step) continue;
          const unsigned got = __shfl_xor_sync(~0u, upper ? word[k] : word[k + step], step);
          (upper ? word[k] : word[k + step]) = got;
        }
      }
      if (exists) {
        *reinterpret_cast<uint4*>(to + (j + place) * 8) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }

  __device__ __forceinline__ static unsigned pack(float low, float high) {
    unsigned word;
    if constexpr (dtype_of<T> == DType::bf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
    return word;
  }
};

#endif

}  // namespace nvllm::kernels::cuda::sm90
