// What kernels that draw tokens share: a bound of a token's luck, and what becomes of a row's best one.
#pragma once

#include "kernels/sampling/sample_tokens.h"
#include "kernels/sampling/sampling_math.h"

namespace nvllm::kernels::cuda {

// Not below the noise of bits that have begun, and not above kMaxGumbel: -ln v (sampling_math.h) of what the upper 15
// bits say.
__device__ __forceinline__ float gumbel_noise_bound(const RandomKeys& noise, std::uint32_t premixed) {
  constexpr int kLower = RandomKeys::kUnfolded;
  constexpr float kLn2 = 0.693147181f;
  float log2;
  asm("lg2.approx.ftz.f32 %0, %1;"
      : "=f"(log2)
      : "f"(static_cast<float>(noise.unfolded(premixed) >> kLower) + 0x1p-18f));
  return fused(log2, -kLn2, kLn2 * (32 - kLower) + 1e-4f);
}

// Where the rows' bests go: tokens, or what reduce_samples() makes them of.
struct SampledTokens {
  const int* targets;  // nullptr: -1
  int* tokens;
  int* last_tokens;
  unsigned long long* bests;  // nullptr: the rows are whole

  explicit SampledTokens(const SampleTokens& args)
      : targets(args.targets.as<int>()),
        tokens(args.tokens.as<int>()),
        last_tokens(args.last_tokens.as<int>()),
        bests(args.best.as<unsigned long long>()) {}

  __device__ void set(long long row, int slot, unsigned long long best) const {
    if (bests != nullptr) {
      bests[row] = best;
    } else if (slot < 0) {
      tokens[row] = targets != nullptr ? targets[row] : -1;
    } else {
      tokens[row] = last_tokens[slot] = token_of(best);
    }
  }

  static __device__ __forceinline__ int token_of(unsigned long long best) {
    return best == 0 ? 0 : static_cast<int>(id_of_candidate(best));
  }
};

}  // namespace nvllm::kernels::cuda
