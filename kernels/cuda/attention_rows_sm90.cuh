// What a consumer warpgroup of attention on Hopper has in registers: 64 packed rows, their scores against a
// tile of tokens, and the softmax so far. See attention_prefill_sm90.cu.
#pragma once

#include "kernels/cuda/attention_tiles_sm90.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What this thread has of them (wgmma.cuh): parts of two rows.
template <typename T, int D>
struct Rows {
  float scores[kTokens / 2];
  float out[D / 2];
  unsigned weights[kTokens / 16][4];  // as left factors
  float highest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns
  float reference[2], fade[2];

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

  // The highest score so far, and by how much what was added up so far fades.
  __device__ __forceinline__ void find_highest(float scale) {
    // Several numbers of each row at a time: one after the other would wait for the one before.
    constexpr int kAtOnce = 4;
    float higher[2][kAtOnce];
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& most = higher[row][j % kAtOnce];
        const float here = fmaxf(scores[4 * j + 2 * row], scores[4 * j + 2 * row + 1]);
        most = j < kAtOnce ? here : fmaxf(most, here);
      }
    }
    float most[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      most[row] =
          fmaxf(fmaxf(higher[row][0], higher[row][1]), fmaxf(higher[row][2], higher[row][3]));
      most[row] = fmaxf(most[row], highest[row]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        most[row] = fmaxf(most[row], __shfl_xor_sync(~0u, most[row], lanes));
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      reference[row] = reference_of(most[row]) * scale;
      fade[row] = power_of_2(highest[row] * scale - reference[row]);
      highest[row] = most[row];
      sum[row] *= fade[row];
    }
  }

  // Scores of columns 8 * from to 8 * to become weights, relative to the highest score so far.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void weigh(float scale) {
    float more[2][2] = {};
#pragma unroll
    for (int j = kFrom; j < kTo; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * j + i];
        score = power_of_2(score * scale - reference[i / 2]);
        more[i / 2][i % 2] += score;
      }
    }
    sum[0] += more[0][0] + more[0][1];
    sum[1] += more[1][0] + more[1][1];
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

  __device__ __forceinline__ void fade_out() {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * j + i] *= fade[i / 2];
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
        part.p.lse[index] = log_sum_exp(highest[i] * part.p.scale * kLog2E, sum[i]);
      }
    }
  }

 private:
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
