// Quantized weights of the small-M GEMM (small_m.cuh): how a stage of them is multiplied by rows of
// x, which are 16-bit floats or, for weights in fp8, rows in fp8.
#pragma once

#include "kernels/common/sm90/wgmma.cuh"
#include "kernels/gemm/sm80/quantized_values.cuh"
#include "kernels/gemm/sm90/deferred_norm.cuh"

namespace nvllm::kernels::cuda::small_m {

// The operands of the tensor cores: weights of 16-bit floats in shared memory; quantized ones,
// dequantized to 16-bit floats in registers; or fp8 weights and fp8 x.
enum class Operands { floats, dequantized, fp8 };

// The location of a weight's scales: one word, a float or two float16, per output and group.
struct ScaleWords {
  const unsigned* words = nullptr;  // [outputs, groups]; nullptr: none
  int groups = 0, group_bits = 0;   // of an output; a group has 2^group_bits inputs
};

// A stage has a block of 64 bytes of each output, which warps convert to fragments in registers,
// scaled in float32 and rounded to x's type once. So results are those of the dequantized weights.
// The scales of all of a block's outputs and inputs are loaded into shared memory before the first
// stage.
template <WeightFormat kFormat, typename T>
struct QuantizedWeights {
  using Element = T;
  static constexpr Operands kOperands = Operands::dequantized;
  static constexpr int kStageInputs = block_inputs_of(kFormat), kInputBytes = 2;
  static constexpr int kRowBytes = static_cast<int>(kQuantizedBlockBytes);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

  static constexpr int kSteps = kStageInputs / 16;
  using Values = QuantizedValues<kFormat, T>;

  // A warp's outputs of a stage as fragments: rows lane / 4 and lane / 4 + 8 of its 16. scales: of
  // these two rows, in shared memory, starting at the group of the block's first input.
  struct Fragments {
    unsigned a[kSteps][4];

    __device__ __forceinline__ void load(unsigned block, const unsigned (&scales)[2], int input,
                                         int group_bits) {
      unsigned words[2][4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[row][0]), "=r"(words[row][1]), "=r"(words[row][2]),
                       "=r"(words[row][3])
                     : "r"(block + row * 8 * kRowBytes)
                     : "memory");
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        int previous = -1;
        GroupScale scale{};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          unsigned pairs[2 * Values::kSteps];
          Values::unpack(words[row][k], pairs);
#pragma unroll
          for (int s = 0; s < Values::kSteps; ++s) {
            const int step = k * Values::kSteps + s;
            // A group consists of whole steps, usually several.
            if (const int own = (input + step * 16) >> group_bits; own != previous) {
              scale = load_scale(scales[row] + own * 4);
              previous = own;
            }
            const unsigned first = pairs[2 * s], second = pairs[2 * s + 1];
            if constexpr (kCrossed<kFormat>) {
              a[step][row] = scaled(low(first), low(second), scale);
              a[step][row + 2] = scaled(high(first), high(second), scale);
            } else {
              a[step][row] = scaled(low(first), high(first), scale);
              a[step][row + 2] = scaled(low(second), high(second), scale);
            }
          }
        }
      }
    }
  };

  // Starts a group of wgmma of a warpgroup's fragments and x of a stage, whose columns lie in boxes
  // of 64; the very first one initializes the sums.
  template <int N>
  static __device__ __forceinline__ void multiply(float (&sums)[N], const Fragments& weights,
                                                  unsigned x, int box_bytes, bool first) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto b = wgmma_descriptor(x + step / 4 * box_bytes + step % 4 * 32, 16, 1024);
      wgmma_in_rows<T>(sums, weights.a[step], b, !first || step > 0);
    }
    wgmma_commit();
  }

 private:
  static __device__ __forceinline__ float low(unsigned pair) {
    return widen(T{static_cast<unsigned short>(pair)});
  }
  static __device__ __forceinline__ float high(unsigned pair) {
    return widen(T{static_cast<unsigned short>(pair >> 16)});
  }
  static __device__ __forceinline__ unsigned scaled(float first, float second, GroupScale scale) {
    const unsigned low = narrow<T>(fmaf(first, scale.scale, scale.offset)).bits;
    const unsigned high = narrow<T>(fmaf(second, scale.scale, scale.offset)).bits;
    return low | high << 16;
  }
  static __device__ __forceinline__ GroupScale load_scale(unsigned at) {
    unsigned bits;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(at) : "memory");
    GroupScale scale = group_scale<kFormat, T>(bits);
    constexpr float kUnit = kFormat == WeightFormat::fp8 ? Values::kUnit : kScaleUnit;
    scale.scale *= kUnit, scale.offset *= kUnit;
    return scale;
  }

#endif
};

// fp8 weights by rows of x in fp8 (Fp8Rows): tensor cores read both from shared memory. A stage is
// a group of 128 inputs. Its sums are scaled and accumulated in float32, since the tensor cores
// accumulate fp8 with about 14 bits.
template <typename T>
struct Fp8Weights {
  using Element = T;  // of everything else
  static constexpr Operands kOperands = Operands::fp8;
  static constexpr int kStageInputs = static_cast<int>(kFp8Group), kInputBytes = 1;
  static constexpr int kRowBytes = kStageInputs;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

  // Multiplies a stage of a warpgroup's outputs by kRows rows, and accumulates. row_scales: of the
  // stage's rows, in shared memory. output_scales: of this thread's two outputs.
  template <int kRows>
  static __device__ __forceinline__ void add(float (&sums)[kRows / 2], unsigned weights, unsigned x,
                                             unsigned row_scales, float2 output_scales) {
    constexpr int kPart = kRows < 64 ? kRows : 64;  // rows at a time, limited by registers
    const auto a = wgmma_descriptor(weights, 16, 1024);
#pragma unroll
    for (int first = 0; first < kRows; first += kPart) {
      const auto b = wgmma_descriptor(x + first * kRowBytes, 16, 1024);
      float part[kPart / 2];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageInputs / 32; ++k)
        wgmma_e4m3(part, advance_descriptor(a, k * 32), advance_descriptor(b, k * 32), k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      hold(part);
#pragma unroll
      for (int quad = 0; quad < kPart / 8; ++quad) {
        const float2 scales =
            load_shared_pair(row_scales + (first + quad * 8 + threadIdx.x % 4 * 2) * 4);
        float* const to = sums + first / 2 + quad * 4;
        to[0] = fmaf(part[quad * 4], scales.x * output_scales.x, to[0]);
        to[1] = fmaf(part[quad * 4 + 1], scales.y * output_scales.x, to[1]);
        to[2] = fmaf(part[quad * 4 + 2], scales.x * output_scales.y, to[2]);
        to[3] = fmaf(part[quad * 4 + 3], scales.y * output_scales.y, to[3]);
      }
    }
  }

#endif
};

}  // namespace nvllm::kernels::cuda::small_m
