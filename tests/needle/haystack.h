// Haystacks for the needle model: prompts that hide lines, and ask for them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/needle/needle_model.h"

namespace nvllm::needle {

struct HaystackPlan {
  std::int64_t tokens = 4096;  // of a prompt, its question at the end among them
  std::vector<double> depths = {
      0.5};  // of the needles: 0 begins the text, 1 ends it before the question
  int value_tokens = 3;
  // Lines that one has to go through: the needle's value names another line, which lies elsewhere,
  // and that one the next; the last has the value. The answer is all of it.
  int hops = 0;
  double density = 0.02;  // share of the rest that are lines that nobody asks for; 1: all of it
  std::uint64_t seed = 1;
};

struct Question {
  double depth = 0;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> answer;  // with the end
};

// One question for every depth, all of the same text. An Error if the model has too few symbols for
// so many different lines, or the text is too short for its needles. A question is asked once, at
// the very end.
std::vector<Question> ask_for_needles(const NeedleModel& model, const HaystackPlan& plan);

// The same text, and a key that is not in it.
Question ask_for_nothing(const NeedleModel& model, const HaystackPlan& plan);

}  // namespace nvllm::needle
