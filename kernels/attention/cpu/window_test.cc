// Windows on the CPU: a NaN in a value reaches the rows that attend to it, and no others.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE("rows of different windows in one tile: NaN reaches those that attend to it alone") {
  BACKEND_OR_SKIP(backend);
  auto one = AttentionCase<float>::random(whole_groups({{20, 100}}, 1, 1, 32), 35);
  one.window = 8;
  // Token 85 is attended to by the rows of the tokens 85 to 92, which are rows 5 to 12.
  std::fill_n(one.v.begin() + 85 * one.token_elements(), one.token_elements(), kNan);
  one.run(*backend);
  for (std::int64_t row = 0; row < 20; ++row) {
    CAPTURE(row);
    CHECK(std::isnan(one.out[static_cast<std::size_t>(row * 32)]) == (row >= 5 && row <= 12));
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
