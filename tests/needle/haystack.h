// Haystacks for the needle model: prompts that hide lines, and ask for them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/needle/needle_model.h"

namespace nvllm::needle {

struct HaystackPlan {
  std::int64_t tokens = 4096;  // of a prompt, including its question at the end
  std::vector<double> depths = {
      0.5};  // of the needles: 0 starts the text, 1 is right before the question
  int value_tokens = 3;
  // Number of intermediate lines: the needle's value refers to another line elsewhere, and that one
  // to the next; the last has the value. The answer contains all of them.
  int hops = 0;
  double density = 0.02;  // share of the rest that is lines which are not asked for; 1: all of it
  std::uint64_t seed = 1;
};

struct Question {
  double depth = 0;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> answer;  // including the end token
};

// One question per depth, all with the same text. An Error if the model has too few symbols for the
// number of different lines, or the text is too short for its needles. A prompt contains its
// question once, at the very end.
std::vector<Question> ask_for_needles(const NeedleModel& model, const HaystackPlan& plan);

// The same text, with a key that does not occur in it.
Question ask_for_nothing(const NeedleModel& model, const HaystackPlan& plan);

}  // namespace nvllm::needle
