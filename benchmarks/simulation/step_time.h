// Computes the duration of a step from its contents. StepTime has the parameters of a model on a
// device, fitted to measured runs (benchmarks/simulation/fit.py).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/scheduler/step.h"

namespace nvllm::simulation {

// The contents of a step, or the sum over several.
struct StepWork {
  double steps = 0;
  double decode_rows = 0;
  double decode_context = 0;    // tokens whose K and V decode rows read
  double prompt_tokens = 0;     // prefill rows
  double prompt_pairs = 0;      // pairs of a prefill row and a token that it attends to
  double prompt_steps = 0;      // steps with prefill rows
  double prompt_step_rows = 0;  // all rows of these steps, including decode rows

  StepWork& operator+=(const StepWork& other);
};

// Seconds. A step with decode rows only reads the weights once and runs as a graph, so its time
// grows slowly with its rows: it is given for several numbers of rows. With prefill rows, GEMMs are
// compute-bound, and kernels are launched one by one.
struct StepTime {
  struct Decode {
    double rows = 0, seconds = 0;
  };
  std::vector<Decode> decode;  // without attention; linear between the given numbers of rows
  double decode_context = 0;   // per token that a decode row reads, in any step
  double prompt_step = 0;      // per step with prefill rows
  double prompt_row = 0;       // per row of such a step
  double prompt_pair = 0;

  double seconds(const StepWork& step) const;
  double decode_seconds(double rows) const;
};

// Replaces a rank: applies the scheduler's step messages, returns the contents of each step, and
// produces a result with an arbitrary token for each row that samples.
class SimulatedRank {
 public:
  explicit SimulatedRank(std::int64_t slots) : slots_(static_cast<std::size_t>(slots)) {}

  // Its result is kept until it is taken; results are taken in the order of the steps.
  StepWork follow(const runtime::StepMessage& message);
  runtime::StepResult take_result();

 private:
  struct Slot {
    std::int64_t known = 0, computed = 0;  // tokens
    bool decodes = false;                  // it has sampled a token, possibly before a preemption
  };
  void set_rows(const runtime::StepMessage& message);

  std::vector<Slot> slots_;
  std::vector<runtime::StepRows> rows_;  // of the last step
  std::vector<char> ended_;              // temporary storage of set_rows
  std::deque<runtime::StepResult> results_;
  std::int32_t sampled_ = 0;
};

}  // namespace nvllm::simulation
