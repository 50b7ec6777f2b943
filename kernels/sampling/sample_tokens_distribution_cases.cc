// The distribution of sampled tokens, on whichever backend is linked: as often as softmax says, and
// each sample independent of the others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/sampling/testing/sampling_case.h"

namespace nvllm::kernels {
namespace {

using testing::Sampled;
using testing::SamplingCase;

// Chi-square of the tokens of `samples` rows of the same logits, at positions 0, 1, ...; and its
// degrees of freedom.
struct ChiSquare {
  double value = 0;
  int freedom = -1;
  // Whether it is within 5 standard deviations of what is expected of it.
  bool plausible() const { return std::fabs(value - freedom) < 5 * std::sqrt(2.0 * freedom); }
};

ChiSquare chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& expected) {
  ChiSquare result;
  double rest = 0, rest_expected = 0;  // of the rare ones together
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] < 10) {
      rest += static_cast<double>(counts[i]), rest_expected += expected[i];
      continue;
    }
    const double off = static_cast<double>(counts[i]) - expected[i];
    result.value += off * off / expected[i];
    ++result.freedom;
  }
  if (rest_expected >= 10) {
    result.value += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    ++result.freedom;
  }
  return result;
}

std::vector<std::int32_t> many_samples(Backend& backend, const std::vector<float>& logits,
                                       float temperature, std::int64_t samples, bool by_seed) {
  const auto own = static_cast<std::int64_t>(logits.size());
  std::vector<std::int32_t> tokens;
  constexpr std::int64_t kBatch = 1000;
  for (std::int64_t begin = 0; begin < samples; begin += kBatch) {
    SamplingCase c(kBatch, own, kBatch);
    for (std::int64_t row = 0; row < kBatch; ++row) {
      std::copy(logits.begin(), logits.end(), c.logits.begin() + row * own);
      c.slots[row] = static_cast<std::int32_t>(row);
      c.positions[row] = static_cast<std::int32_t>(by_seed ? 17 : begin + row);
      c.params[row].inverse_temperature = 1 / temperature;
      c.params[row].seed = static_cast<std::uint64_t>(by_seed ? begin + row : 12'345);
    }
    const Sampled sampled = testing::sample(backend, c);
    tokens.insert(tokens.end(), sampled.tokens.begin(), sampled.tokens.end());
  }
  return tokens;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<double> shares;
  double sum = 0;
  for (const float logit : logits) {
    shares.push_back(std::exp((logit - maximum) / temperature));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

TEST_CASE("tokens come as often as softmax says: chi-square, over positions and over seeds") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kSamples = 40'000;
  for (const std::int64_t own : {5, 300}) {
    if (nvllm::testing::kSanitized && own > 5) continue;
    for (const float temperature : {0.5f, 1.0f, 3.0f}) {
      for (const bool by_seed : {false, true}) {
        CAPTURE(own);
        CAPTURE(temperature);
        CAPTURE(by_seed);
        const auto logits = testing::normal_values<float>(own, 9, 0, own == 5 ? 0.5f : 1.5f);
        std::vector<std::int64_t> counts(own);
        for (const std::int32_t token :
             many_samples(*backend, logits, temperature, kSamples, by_seed)) {
          ++counts[token];
        }
        std::vector<double> expected = softmax(logits, temperature);
        for (double& count : expected) count *= kSamples;
        const ChiSquare chi = chi_square(counts, expected);
        CAPTURE(chi.value);
        CAPTURE(chi.freedom);
        CHECK(chi.plausible());
      }
    }
  }
}

TEST_CASE(
    "samples at neighbouring positions, and of neighbouring seeds, know nothing of each other") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kSamples = 40'000, kOwn = 12;
  const std::vector<float> flat(kOwn, 0.0f);
  for (const bool by_seed : {false, true}) {
    const std::vector<std::int32_t> tokens = many_samples(*backend, flat, 1, kSamples, by_seed);
    for (const std::size_t distance : {1, 2, 16}) {
      CAPTURE(by_seed);
      CAPTURE(distance);
      std::vector<std::int64_t> pairs(kOwn * kOwn);
      std::int64_t count = 0;
      for (std::size_t i = distance; i < tokens.size(); ++i, ++count) {
        ++pairs[tokens[i] * kOwn + tokens[i - distance]];
      }
      const std::vector<double> expected(kOwn * kOwn, static_cast<double>(count) / (kOwn * kOwn));
      const ChiSquare chi = chi_square(pairs, expected);
      CAPTURE(chi.value);
      CHECK(chi.plausible());
    }
  }
}

TEST_CASE("a large vocabulary: rare tokens come as often as they should") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  // One token as likely as all others together.
  constexpr std::int64_t kOwn = 20'000, kSamples = 2000;
  std::vector<float> logits(kOwn, 0.0f);
  logits[12'345] = std::log(static_cast<float>(kOwn - 1));
  std::vector<std::int64_t> counts(11);  // tenths of the vocabulary, and the likely one
  for (const std::int32_t token : many_samples(*backend, logits, 1, kSamples, false)) {
    ++counts[token == 12'345 ? 10 : token * 10 / kOwn];
  }
  std::vector<double> expected(11, kSamples / 20.0);
  expected[10] = kSamples / 2.0;
  CHECK(chi_square(counts, expected).plausible());
}

}  // namespace
}  // namespace nvllm::kernels
