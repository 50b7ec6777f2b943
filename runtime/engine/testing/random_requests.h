// Random requests: long and short, alone and with common prefixes, with any combination of
// features.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "runtime/request.h"

namespace nvllm::runtime {

struct RequestShapes {
  std::int64_t vocabulary = 0;
  std::int64_t max_prompt = 120;  // tokens
  std::int64_t max_answer = 24;
  double features = 1;  // factor on each feature's usual probability
};

class RandomRequests {
 public:
  RandomRequests(const RequestShapes& shapes, std::uint32_t seed);

  // All random numbers of a request are generated here: the same seed yields the same requests.
  Request next();
  std::vector<Request> next(std::int64_t count);

 private:
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(random_() % limit); }
  double between(double min, double max);
  bool chance(double probability);
  std::int32_t token();
  std::vector<std::int32_t> tokens(std::int64_t count);
  std::vector<std::int32_t> prompt();
  void choose_sampling(SamplingParams& sampling);
  void choose_penalties(SamplingParams& sampling, const std::vector<std::int32_t>& prompt);
  void choose_end(SamplingParams& sampling);

  RequestShapes shapes_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::int32_t>> prefixes_;
};

}  // namespace nvllm::runtime
