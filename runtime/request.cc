#include "runtime/request.h"

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"

namespace nvllm::runtime {
namespace {

// `wanted`: the condition for the error text, as in "temperature -1: must be at least 0".
template <typename T>
void require(bool good, const char* field, const T& value, const char* wanted) {
  if (!good) fail(field, " ", value, ": must be ", wanted);
}

void check_ids(const char* field, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) require(id >= 0, field, id, "token ids, which are 0 or more");
}

void check_biases(const std::vector<std::pair<std::int32_t, float>>& biases) {
  std::map<std::int32_t, float> sums;  // an id may be there twice
  for (const auto& [id, bias] : biases) {
    require(id >= 0, "logit_bias of token", id, "of token ids, which are 0 or more");
    require(std::isfinite(bias), "logit_bias", bias, "a finite number");
    const float sum = sums[id] += bias;
    if (!std::isfinite(sum))
      fail("logit_bias of token ", id, " adds up to ", sum, ": must be a finite number");
  }
}

void check_lists(const SamplingParams& params) {
  check_ids("stop_token_ids", params.stop_token_ids);
  check_ids("allowed_token_ids", params.allowed_token_ids);
  check_biases(params.logit_bias);
  for (const std::vector<std::int32_t>& word : params.bad_words) {
    require(!word.empty(), "bad_words", "with a word of no tokens", "words of at least one token");
    check_ids("bad_words", word);
  }
}

void check_penalty(const char* field, double value) {
  require(value >= -2 && value <= 2, field, value, "from -2 to 2");
}

// The sampler computes in float32, in which larger numbers are infinite and smaller ones 0.
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr double kMinFloat = std::numeric_limits<float>::min();

}  // namespace

void check_sampling_params(const SamplingParams& params) {
  require(params.n >= 1 && params.n <= kMaxAnswers, "n", params.n,
          str("from 1 to ", kMaxAnswers).c_str());
  require(params.temperature >= 0 && params.temperature <= kMaxFloat, "temperature",
          params.temperature, "a finite number, 0 (the most likely token) or more");
  require(params.top_p > 0 && params.top_p <= 1, "top_p", params.top_p,
          "above 0 and at most 1 (off)");
  require(params.top_k >= -1, "top_k", params.top_k, "at least 1, or 0 or -1 (off)");
  require(params.min_p >= 0 && params.min_p <= 1, "min_p", params.min_p, "from 0 (off) to 1");
  require(params.repetition_penalty >= kMinFloat && params.repetition_penalty <= kMaxFloat,
          "repetition_penalty", params.repetition_penalty, "a finite number above 0 (1 is off)");
  check_penalty("presence_penalty", params.presence_penalty);
  check_penalty("frequency_penalty", params.frequency_penalty);
  if (params.max_tokens)
    require(*params.max_tokens >= 1, "max_tokens", *params.max_tokens, "at least 1");
  require(params.min_tokens >= 0, "min_tokens", params.min_tokens, "at least 0");
  if (params.max_tokens && params.min_tokens > *params.max_tokens)
    fail("min_tokens ", params.min_tokens, ": must be at most max_tokens, which is ",
         *params.max_tokens);
  if (params.logprobs) require(*params.logprobs >= 0, "logprobs", *params.logprobs, "at least 0");
  if (params.prompt_logprobs)
    require(*params.prompt_logprobs >= 0, "prompt_logprobs", *params.prompt_logprobs, "at least 0");
  check_lists(params);
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
  }
  return "";
}

}  // namespace nvllm::runtime
