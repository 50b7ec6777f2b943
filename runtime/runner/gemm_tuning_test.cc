#include "runtime/runner/gemm_tuning.h"

#include <doctest/doctest.h>

namespace nvllm::runtime {
namespace {

std::vector<std::int64_t> rows_of(const std::vector<TunedSize>& sizes, bool decodes) {
  std::vector<std::int64_t> rows;
  for (const TunedSize& size : sizes) {
    if (size.decodes == decodes) rows.push_back(size.rows);
  }
  return rows;
}

using Rows = std::vector<std::int64_t>;

TEST_CASE("prompts are tuned for the most rows and powers of two, largest first") {
  CHECK(rows_of(tuned_sizes(4, 8192), false) == Rows{8192, 4096, 2048, 1024, 512});
  CHECK(rows_of(tuned_sizes(4, 5000), false) == Rows{5000, 4096, 2048, 1024, 512});
  CHECK(rows_of(tuned_sizes(4, 600), false) == Rows{600, 512});
  CHECK(rows_of(tuned_sizes(4, 512), false) == Rows{512});
  CHECK(rows_of(tuned_sizes(4, 511), false).empty());
}

TEST_CASE("decode steps are tuned for the sizes that they are padded to") {
  CHECK(rows_of(tuned_sizes(256, 8192), true) ==
        Rows{256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 56, 48, 40, 32, 24});
  CHECK(rows_of(tuned_sizes(30, 8192), true) == Rows{30, 24});
  CHECK(rows_of(tuned_sizes(16, 8192), true).empty());
  CHECK(rows_of(tuned_sizes(100, 30), true) == Rows{24});
}

}  // namespace
}  // namespace nvllm::runtime
