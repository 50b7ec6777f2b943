#include "launcher/cli/bench_rows.h"

#include <limits>

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kMaxTokens = 10'000'000;
constexpr std::int64_t kMaxWarmup = 100'000;

const Into kInto(&Options::bench);

// "1024" or "100:1024"
LengthRange length_range(const OptionValue& value) {
  const std::string_view text = value.text();
  const std::size_t colon = text.find(':');
  const auto length = [&](std::string_view part) {
    return OptionValue(value.name(), part).whole(1, kMaxTokens);
  };
  if (colon == std::string_view::npos) return {length(text), length(text)};
  const LengthRange range{length(text.substr(0, colon)), length(text.substr(colon + 1))};
  if (range.min > range.max) {
    refuse(value.name(), ' ', text, ": ends before it begins; pass ", range.max, ':', range.min);
  }
  return range;
}

}  // namespace

OptionRow dataset_seed_row() {
  return {"--dataset-seed", "N", "seed of the prompts and their lengths", "0",
          kInto.whole(&BenchOptions::dataset_seed, 0, std::numeric_limits<std::int64_t>::max())};
}

OptionRow input_row(const char* value, const char* help, const char* fallback) {
  return {"--input-len", value, help, fallback,
          [](Options& o, const OptionValue& v) { o.bench.input = length_range(v); }};
}

OptionRow output_row(const char* value, const char* help, const char* fallback) {
  return {"--output-len", value, help, fallback,
          [](Options& o, const OptionValue& v) { o.bench.output = length_range(v); }};
}

OptionRow warmup_row(const char* help, const char* fallback) {
  return {"--warmup", "N", help, fallback, kInto.whole(&BenchOptions::warmup, 0, kMaxWarmup)};
}

OptionRow max_concurrency_row() {
  return {"--max-concurrency", "N",
          "how many requests are in flight; the next one starts when one ends", "all",
          kInto.whole(&BenchOptions::max_concurrency, 1, kMaxSequences)};
}

}  // namespace nvllm::launcher
