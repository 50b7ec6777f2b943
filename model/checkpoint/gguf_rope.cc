// Finds Llama 3's RoPE scaling from the divisors that a GGUF file stores.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "model/checkpoint/gguf_config.h"

namespace nvllm::model {
namespace {

// The divisors are written in float32, computed from frequencies that may have been float32 too.
constexpr double kTolerance = 1e-5;

// In positions; longer than any context.
constexpr double kMaxWavelength = 1e15;

struct Point {
  double wavelength, divisor;
};

bool reproduces(const Llama3Scaling& scaling, const std::vector<Point>& points) {
  return std::ranges::all_of(points, [&](const Point& point) {
    const double error = llama3_divisor(scaling, point.wavelength) - point.divisor;
    return std::abs(error) <= kTolerance * point.divisor;
  });
}

// The share of a frequency that is kept: 1 / divisor = (1 - kept) / factor + kept.
double kept(const Point& point, double factor) {
  return (1 / point.divisor - 1 / factor) / (1 - 1 / factor);
}

// The two wavelengths between which frequencies are blended. Only their ratios to the original
// context matter, so that one of the three parameters is free.
std::optional<Llama3Scaling> with_bounds(double factor, double short_wavelength,
                                         double long_wavelength) {
  if (!(long_wavelength < kMaxWavelength)) return std::nullopt;
  Llama3Scaling scaling;
  scaling.factor = factor;
  const double original = std::max(1.0, std::round(long_wavelength));
  scaling.original_max_position_embeddings = static_cast<std::int64_t>(original);
  scaling.low_freq_factor = original / long_wavelength;
  scaling.high_freq_factor = original / short_wavelength;
  return scaling;
}

// From blended frequencies: kept() is linear in 1 / wavelength, from 0 to 1 between the bounds.
std::optional<Llama3Scaling> from_line(const Point& first, const Point& last, double factor) {
  const double x0 = 1 / first.wavelength, x1 = 1 / last.wavelength;
  const double slope = (kept(first, factor) - kept(last, factor)) / (x0 - x1);
  const double long_inverse = x1 - kept(last, factor) / slope;
  const double short_inverse = long_inverse + 1 / slope;
  if (!(slope > 0) || !(long_inverse > 0)) return std::nullopt;
  return with_bounds(factor, 1 / short_inverse, 1 / long_inverse);
}

}  // namespace

double llama3_divisor(const Llama3Scaling& scaling, double wavelength) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  if (wavelength < original / scaling.high_freq_factor) return 1;
  if (wavelength > original / scaling.low_freq_factor) return scaling.factor;
  const double keep = (original / wavelength - scaling.low_freq_factor) /
                      (scaling.high_freq_factor - scaling.low_freq_factor);
  return 1 / ((1 - keep) / scaling.factor + keep);
}

std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const double power = static_cast<double>(i) / static_cast<double>(divisors.size());
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, power);
    points.push_back({wavelength, static_cast<double>(divisors[i])});
    if (!(points.back().divisor >= 1) || !std::isfinite(points.back().divisor)) return std::nullopt;
  }
  if (points.empty() || !(theta > 1)) return std::nullopt;
  const double factor = points.back().divisor;
  const auto accept = [&](std::optional<Llama3Scaling> scaling) {
    return scaling && reproduces(*scaling, points) ? scaling : std::nullopt;
  };

  // Llama 3.1 to 3.3 have the default bounds; where these fit, they are exact.
  if (auto scaling = accept(Llama3Scaling{.factor = factor})) return scaling;
  if (factor == 1) return std::nullopt;

  // Wavelengths grow. Llama 3's scaling keeps the first frequencies, blends some, divides the rest.
  const auto divided = std::ranges::find_if(
      points, [&](const Point& point) { return kept(point, factor) <= kTolerance; });
  const auto blended = std::ranges::find_if(
      points, [&](const Point& point) { return kept(point, factor) < 1 - kTolerance; });
  if (divided - blended >= 2) return accept(from_line(*blended, *(divided - 1), factor));

  // Too few frequencies are blended to tell the bounds, so any that separate the points so will do.
  const double longest = divided->wavelength;
  const double shortest = blended == points.begin() ? 1 : (blended - 1)->wavelength;
  if (divided == blended) {
    const double ratio = std::cbrt(longest / shortest);
    return accept(with_bounds(factor, shortest * ratio, shortest * ratio * ratio));
  }
  // The line through the one blended frequency gives one bound from the other. Both lie halfway to
  // the neighbouring frequencies.
  const double keep = kept(*blended, factor), inverse = 1 / blended->wavelength;
  const double margin =
      std::min(inverse - 1 / longest, (1 / shortest - inverse) * keep / (1 - keep)) / 2;
  return accept(
      with_bounds(factor, 1 / (inverse + margin * (1 - keep) / keep), 1 / (inverse - margin)));
}

}  // namespace nvllm::model
