// One call of sample_tokens with its memory, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling/sample_tokens.h"
#include "kernels/sampling/testing/sampling_case.h"

namespace nvllm::kernels::testing {

// What drawing writes.
struct Drawn {
  std::vector<std::int32_t> tokens, last_tokens;
  bool operator==(const Drawn&) const = default;
};

struct Extra {
  std::vector<float> thresholds;  // empty: none
  std::vector<std::int32_t> targets;
};

inline constexpr std::int32_t kUntouched = -777;

// Twice, to see that the first call leaves the scratch as it found it.
inline Drawn draw(Backend& backend, const SamplingCase& c, const Extra& extra = {},
                  std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const PlacedCase there(backend, *stream, c, shift);
  Placed<std::int32_t> tokens(backend, *stream, std::vector<std::int32_t>(c.rows, kUntouched));
  Placed<std::int32_t> last(backend, *stream,
                            std::vector<std::int32_t>(c.params.size(), kUntouched));
  Placed<std::int64_t> scratch(backend, *stream,
                               std::vector<std::int64_t>(sample_scratch_words(c.rows)));
  const Placed<float> thresholds(backend, *stream, extra.thresholds);
  const Placed<std::int32_t> targets(backend, *stream, extra.targets);
  SampleTokens args;
  args.rows = there.args();
  if (!extra.thresholds.empty()) args.thresholds = thresholds.view({c.rows});
  if (!extra.targets.empty()) args.targets = targets.view({c.rows});
  args.scratch = scratch.view({sample_scratch_words(c.rows)});
  args.tokens = tokens.view({c.rows});
  args.last_tokens = last.view({static_cast<std::int64_t>(c.params.size())});
  sample_tokens(args, *stream);
  sample_tokens(args, *stream);
  CHECK(scratch.fetch() == std::vector<std::int64_t>(sample_scratch_words(c.rows)));
  return {tokens.fetch(), last.fetch()};
}

}  // namespace nvllm::kernels::testing
