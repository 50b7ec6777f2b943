// StepsInFlight: for each step whose result is not known yet, which sequences it will bring something for.
// Results name slots; a slot may have ended and started again since, so the step remembers whom it meant.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/sequence.h"

namespace nvllm::runtime {

// What one step's result holds for one sequence, in the order of the step's rows.
struct DueResult {
  Sequence* sequence = nullptr;
  std::uint32_t slot = 0;
  bool draws = false;
  std::int64_t first_scored = 0;  // position of the first row that scores the prompt's next token
  std::int64_t scored = 0;        // such rows
};

class StepsInFlight {
 public:
  struct Step {
    std::uint64_t number = 0;
    std::vector<DueResult> due;
  };

  // An empty step, to be filled and pushed.
  Step begin(std::uint64_t number) {
    Step step{.number = number, .due = {}};
    if (!spare_.empty()) {
      step.due = std::move(spare_.back());
      spare_.pop_back();
    }
    return step;
  }
  void push(Step step) { steps_.push_back(std::move(step)); }

  bool empty() const { return steps_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(steps_.size()); }
  const std::deque<Step>& steps() const { return steps_; }

  Step take_oldest() {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    return step;
  }
  // Its memory serves again.
  void give_back(Step step) {
    step.due.clear();
    spare_.push_back(std::move(step.due));
  }

 private:
  std::deque<Step> steps_;
  std::vector<std::vector<DueResult>> spare_;
};

}  // namespace nvllm::runtime
