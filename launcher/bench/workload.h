// Workload: which prompts a benchmark asks for, and how many tokens of each.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/request.h"

namespace nvllm::launcher {

// Lengths are drawn from it evenly, both ends included.
struct LengthRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// nano-vllm's benchmark by default.
struct WorkloadOptions {
  std::int64_t sequences = 256;
  LengthRange prompt{100, 1024};
  LengthRange output{100, 1024};
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;  // of the model
};

struct Workload {
  std::vector<runtime::Request> requests;  // temperature 0.6, ends ignored
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
};

// As nano-vllm's bench.py draws it: after random.seed(seed), for each prompt its length, then its ids from
// 0 to 10,000 (or what the vocabulary has); after all of them the length of each answer.
Workload make_workload(const WorkloadOptions& options);

// One request of a benchmark: a prompt that was drawn, and exactly so many tokens of an answer.
runtime::Request make_request(std::vector<std::int32_t> prompt, std::int64_t output_tokens);

}  // namespace nvllm::launcher
