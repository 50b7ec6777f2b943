// How long a step takes, from what it computes. StepTime holds the figures of a model on a device,
// fitted to measured runs (benchmarks/simulation/fit.py).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/scheduler/step.h"

namespace nvllm::simulation {

// What a step computes; or the sum over several.
struct StepWork {
  double steps = 0;
  double decode_rows = 0;
  double decode_context = 0;    // tokens whose K and V decode rows read
  double prompt_tokens = 0;     // rows of prompts
  double prompt_pairs = 0;      // of a prompt's row and a token that it attends to
  double prompt_steps = 0;      // steps with rows of prompts
  double prompt_step_rows = 0;  // all rows of these, decode rows as well

  StepWork& operator+=(const StepWork& other);
};

// Seconds. A step of decode rows alone reads the weights once and runs as one graph, so its time is
// hardly a multiple of its rows: it is given for some numbers of rows. With rows of prompts in it,
// GEMMs are bound by compute, and kernels are launched one by one.
struct StepTime {
  struct Decode {
    double rows = 0, seconds = 0;
  };
  std::vector<Decode> decode;  // without attention; by rows, between which it is linear
  double decode_context = 0;   // for each token that a decode row reads, in any step
  double prompt_step = 0;      // for each step with rows of prompts
  double prompt_row = 0;       // for each row of such a step
  double prompt_pair = 0;

  double seconds(const StepWork& step) const;
  double decode_seconds(double rows) const;
};

// In place of a rank: follows the scheduler's step messages, says what each step computes, and
// gives a result with some token for each row that samples.
class SimulatedRank {
 public:
  explicit SimulatedRank(std::int64_t slots) : slots_(static_cast<std::size_t>(slots)) {}

  // Its result is kept until it is taken; results are taken in the order of their steps.
  StepWork follow(const runtime::StepMessage& message);
  runtime::StepResult take_result();

 private:
  struct Slot {
    std::int64_t known = 0, computed = 0;  // tokens
    bool decodes = false;                  // it has sampled, or had when it was preempted
  };
  void set_rows(const runtime::StepMessage& message);

  std::vector<Slot> slots_;
  std::vector<runtime::StepRows> rows_;  // of the last step
  std::vector<char> ended_;              // scratch of set_rows
  std::deque<runtime::StepResult> results_;
  std::int32_t sampled_ = 0;
};

}  // namespace nvllm::simulation
