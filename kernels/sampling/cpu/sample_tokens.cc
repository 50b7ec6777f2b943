// Sampling on the CPU: of eight tokens at a time a bound tells which cannot win; the few others are
// compared one by one, with the arithmetic that all devices share.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint64_t greedy(const float* logits, std::int64_t count, std::uint32_t first_id) {
  const float best = max_of(logits, count);
  const __m256 wanted = _mm256_set1_ps(best);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const int equal = _mm256_movemask_ps(_mm256_cmp_ps(load8(logits + i), wanted, _CMP_EQ_OQ));
    if (equal == 0) continue;
    i += std::countr_zero(static_cast<unsigned>(equal));
    return candidate(best, first_id + static_cast<std::uint32_t>(i));
  }
  for (; i < count; ++i) {
    if (logits[i] == best) return candidate(best, first_id + static_cast<std::uint32_t>(i));
  }
  return count == 0 ? 0 : candidate(std::numeric_limits<float>::quiet_NaN(), first_id);
}

// max_gumbel() of eight, by their upper 24 bits, which conversion takes for numbers without a sign.
__m256 max_gumbel8(__m256i bits) {
  const __m256 upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 8));
  const __m256 line = _mm256_cvtepi32_ps(_mm256_castps_si256(upper));
  return _mm256_fmadd_ps(line, _mm256_set1_ps(kGumbelOfLine),
                         _mm256_set1_ps(kGumbelOfZero - 8 * kGumbelOfPower));
}

struct RowSampler {
  const float* logits;
  std::int64_t count;
  std::uint32_t first_id;
  float inverse_temperature, threshold;
  RandomKeys noise;

  std::uint64_t best() const {
    std::uint64_t best = 0;
    float score = -kInfinity;  // the best's
    const auto consider = [&](std::int64_t i) {
      const std::uint32_t id = first_id + static_cast<std::uint32_t>(i);
      const float own = fused(logits[i], inverse_temperature, gumbel(noise.bits(id)));
      best = std::max(best, candidate(own, id));
      score = score_of_candidate(best);
    };
    const __m256 factor = _mm256_set1_ps(inverse_temperature), minimum = _mm256_set1_ps(threshold);
    const __m256 maximum = _mm256_set1_ps(kMaxGumbel);
    const __m256i in_order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const __m256 logit = load8(logits + i);
      const __m256 to_beat = _mm256_set1_ps(score);
      // Whoever is above the threshold, and could reach the best with the largest noise.
      const __m256 hopeful = _mm256_and_ps(
          _mm256_cmp_ps(logit, minimum, _CMP_GE_OQ),
          _mm256_cmp_ps(_mm256_fmadd_ps(logit, factor, maximum), to_beat, _CMP_GE_OQ));
      if (_mm256_movemask_ps(hopeful) == 0) continue;
      const __m256i ids = _mm256_add_epi32(
          in_order, _mm256_set1_epi32(static_cast<int>(first_id + static_cast<std::uint32_t>(i))));
      const __m256 gumbel_noise_bound = max_gumbel8(random_bits8(noise, ids));
      const __m256 reach =
          _mm256_cmp_ps(_mm256_fmadd_ps(logit, factor, gumbel_noise_bound), to_beat, _CMP_GE_OQ);
      auto left = static_cast<unsigned>(_mm256_movemask_ps(_mm256_and_ps(hopeful, reach)));
      for (; left != 0; left &= left - 1) consider(i + std::countr_zero(left));
    }
    for (; i < count; ++i) {
      if (logits[i] >= threshold) consider(i);
    }
    return best;
  }
};

struct Job {
  SamplingRowsView rows;
  const float* thresholds;  // nullptr: none
  SampledTokens sampled;

  std::uint64_t best_of(std::int64_t row, const SlotParams& params) const {
    const float* logits = rows.sampled_logits(row, params.flags);
    if (params.inverse_temperature == 0) return greedy(logits, rows.own, rows.first_id);
    return RowSampler{.logits = logits,
                      .count = rows.own,
                      .first_id = rows.first_id,
                      .inverse_temperature = params.inverse_temperature,
                      .threshold = thresholds != nullptr ? thresholds[row] : -kInfinity,
                      .noise = noise_keys(params.seed, rows.positions[row])}
        .best();
  }

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t slot = rows.slots[row];
      sampled.set(row, slot, slot < 0 ? 0 : best_of(row, rows.params[slot]));
    }
  }
};

}  // namespace

void sample_tokens(const SampleTokens& args, Stream& stream) {
  const Job job{.rows = SamplingRowsView(args.rows),
                .thresholds = args.thresholds.as<float>(),
                .sampled = SampledTokens(args)};
  submit_rows(stream, job.rows.rows, job.rows.own * static_cast<std::int64_t>(sizeof(float)), job);
}

void reduce_samples(const ReduceSamples& args, Stream& stream) {
  nvllm::cpu::stream(stream).submit(
      [bests = args.bests.as<std::uint64_t>(), slots = args.slots.as<std::int32_t>(),
       sampled = SampledTokens(args), parts = args.bests.shape[0], rows = args.bests.shape[1]] {
        for (std::int64_t row = 0; row < rows; ++row) {
          std::uint64_t best = 0;
          for (std::int64_t part = 0; part < parts; ++part) {
            best = std::max(best, bests[part * rows + row]);
          }
          sampled.set(row, slots[row], best);
        }
      });
}

}  // namespace nvllm::kernels::cpu
