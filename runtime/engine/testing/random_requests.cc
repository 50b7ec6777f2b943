#include "runtime/engine/testing/random_requests.h"

#include <algorithm>

namespace nvllm::runtime {

RandomRequests::RandomRequests(const RequestShapes& shapes, std::uint32_t seed)
    : shapes_(shapes), random_(seed) {
  for (int i = 0; i < 4; ++i) prefixes_.push_back(tokens(shapes.max_prompt / 6 * (i + 1)));
}

double RandomRequests::between(double min, double max) {
  return min + (max - min) * static_cast<double>(random_() >> 11) * 0x1p-53;
}

bool RandomRequests::chance(double probability) {
  return between(0, 1) < probability * shapes_.features;
}

std::int32_t RandomRequests::token() {
  return static_cast<std::int32_t>(below(shapes_.vocabulary));
}

std::vector<std::int32_t> RandomRequests::tokens(std::int64_t count) {
  std::vector<std::int32_t> some(static_cast<std::size_t>(count));
  for (std::int32_t& each : some) each = token();
  return some;
}

std::vector<std::int32_t> RandomRequests::prompt() {
  std::vector<std::int32_t> all;
  if (below(2) == 0) all = prefixes_[static_cast<std::size_t>(below(std::ssize(prefixes_)))];
  const std::int64_t room = shapes_.max_prompt - std::ssize(all);
  // Mostly short, sometimes of maximum length.
  const std::vector<std::int32_t> rest =
      tokens(1 + below(below(4) == 0 ? room : std::min<std::int64_t>(room, 16)));
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

void RandomRequests::choose_sampling(SamplingParams& sampling) {
  sampling.temperature = below(3) == 0 ? 0 : between(0.3, 1.5);
  if (chance(0.3)) sampling.top_k = static_cast<std::int32_t>(1 + below(50));
  if (chance(0.3)) sampling.top_p = between(0.3, 1);
  if (chance(0.3)) sampling.min_p = between(0, 0.2);
  if (below(4) != 0) sampling.seed = random_();
  if (chance(0.2)) sampling.n = static_cast<std::int32_t>(1 + below(3));
}

void RandomRequests::choose_penalties(SamplingParams& sampling,
                                      const std::vector<std::int32_t>& prompt) {
  if (chance(0.3)) sampling.repetition_penalty = between(0.8, 1.5);
  if (chance(0.3)) sampling.presence_penalty = between(-1, 1);
  if (chance(0.3)) sampling.frequency_penalty = between(-1, 1);
  if (chance(0.2)) {
    for (std::int64_t i = below(8); i >= 0; --i) {
      const std::int32_t biased = token();
      const auto same = [&](const auto& other) { return other.first == biased; };
      if (std::ranges::any_of(sampling.logit_bias, same)) continue;
      sampling.logit_bias.emplace_back(biased, static_cast<float>(between(-4, 4)));
    }
  }
  if (chance(0.15)) {
    sampling.allowed_token_ids = tokens(20 + below(shapes_.vocabulary / 2));
    std::ranges::sort(sampling.allowed_token_ids);
    auto& allowed = sampling.allowed_token_ids;
    allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  }
  if (chance(0.2)) {
    // Some stop words start as the prompt ends.
    for (std::int64_t i = below(5); i >= 0; --i) {
      std::vector<std::int32_t> word = tokens(1 + below(2));
      if (below(2) == 0) word.insert(word.begin(), prompt.back());
      sampling.bad_words.push_back(std::move(word));
    }
  }
}

void RandomRequests::choose_end(SamplingParams& sampling) {
  sampling.max_tokens = static_cast<std::int32_t>(1 + below(shapes_.max_answer));
  if (chance(0.3)) sampling.min_tokens = static_cast<std::int32_t>(below(*sampling.max_tokens + 1));
  sampling.ignore_eos = chance(0.3);
  if (chance(0.3)) sampling.stop_token_ids = tokens(1 + below(40));
}

Request RandomRequests::next() {
  Request request;
  request.prompt = prompt();
  choose_sampling(request.sampling);
  choose_penalties(request.sampling, request.prompt);
  choose_end(request.sampling);
  if (chance(0.4)) request.sampling.logprobs = static_cast<std::int32_t>(below(6));
  if (chance(0.1)) request.sampling.prompt_logprobs = static_cast<std::int32_t>(below(4));
  return request;
}

std::vector<Request> RandomRequests::next(std::int64_t count) {
  std::vector<Request> requests;
  for (; count > 0; --count) requests.push_back(next());
  return requests;
}

}  // namespace nvllm::runtime
