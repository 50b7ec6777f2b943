#include <doctest/doctest.h>

#include "runtime/engine/engine.h"

namespace nvllm::runtime {
namespace {

// A machine with these costs per row and per step.
double seconds_of(std::int64_t rows, double per_row, double per_step = 0) {
  return per_step + static_cast<double>(rows) * per_row;
}

TEST_CASE("steps become as long as they should, whatever the machine's speed") {
  for (const double per_row : {1e-5, 2e-4, 5e-3}) {
    StepPacer pacer(0.15, 8192);
    double longest = 0;
    for (int i = 0; i < 20; ++i) {
      const double seconds = seconds_of(pacer.rows(), per_row);
      longest = std::max(longest, seconds);
      pacer.note(pacer.rows(), seconds);
    }
    CHECK(longest <= 0.151);
    const double last = seconds_of(pacer.rows(), per_row);
    CHECK((last > 0.1 || pacer.rows() == 8192));
  }
}

TEST_CASE("a slow step is followed by a smaller one, and the limits hold") {
  StepPacer pacer(0.1, 100);
  for (int i = 0; i < 10; ++i) pacer.note(pacer.rows(), 1e-6);
  CHECK(pacer.rows() == 100);
  pacer.note(100, 0.4);
  CHECK(pacer.rows() == 24);
  pacer.note(24, 60);
  CHECK(pacer.rows() == 8);
  CHECK(StepPacer(0.1, 3).rows() == 3);
}

TEST_CASE("steps of few rows say nothing about large ones") {
  StepPacer pacer(0.1, 8192);
  pacer.note(16, 0.01);
  const std::int64_t rows = pacer.rows();
  pacer.note(1, 0.09);
  CHECK(pacer.rows() == rows);
}

}  // namespace
}  // namespace nvllm::runtime
