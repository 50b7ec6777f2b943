#include "runtime/request.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "testing/error_of.h"

namespace nvllm::runtime {
namespace {

// The error text; empty: accepted.
template <typename Change>
std::string refusal(Change change) {
  SamplingParams params;
  change(params);
  return testing::error_of([&] { check_sampling_params(params); });
}

TEST_CASE("defaults, and values at the ends of their ranges, are taken") {
  CHECK(refusal([](SamplingParams&) {}) == "");
  CHECK(refusal([](SamplingParams& p) { p.temperature = 0; }) == "");
  CHECK(refusal([](SamplingParams& p) { p.top_k = -1; }) == "");
  CHECK(refusal([](SamplingParams& p) { p.min_p = 1; }) == "");
  CHECK(refusal([](SamplingParams& p) { p.presence_penalty = -2; }) == "");
  CHECK(refusal([](SamplingParams& p) { p.logprobs = 0; }) == "");
  CHECK(refusal([](SamplingParams& p) { p.max_tokens.reset(), p.min_tokens = 1000; }) == "");
}

TEST_CASE("a value out of its range is refused with the field, the value and the range") {
  CHECK(refusal([](SamplingParams& p) { p.n = 0; }) == "n 0: must be from 1 to 16384");
  CHECK(refusal([](SamplingParams& p) { p.n = 16385; }) != "");
  CHECK(refusal([](SamplingParams& p) { p.temperature = -0.5; }) ==
        "temperature -0.5: must be a finite number, 0 (the most likely token) or more");
  CHECK(refusal([](SamplingParams& p) { p.top_p = 0; }) ==
        "top_p 0: must be above 0 and at most 1 (off)");
  CHECK(refusal([](SamplingParams& p) { p.top_p = 1.5; }) != "");
  CHECK(refusal([](SamplingParams& p) { p.top_k = -2; }) ==
        "top_k -2: must be at least 1, or 0 or -1 (off)");
  CHECK(refusal([](SamplingParams& p) { p.min_p = 1.1; }) ==
        "min_p 1.1: must be from 0 (off) to 1");
  CHECK(refusal([](SamplingParams& p) { p.repetition_penalty = 0; }) ==
        "repetition_penalty 0: must be a finite number above 0 (1 is off)");
  CHECK(refusal([](SamplingParams& p) { p.presence_penalty = 2.5; }) ==
        "presence_penalty 2.5: must be from -2 to 2");
  CHECK(refusal([](SamplingParams& p) { p.frequency_penalty = -3; }) ==
        "frequency_penalty -3: must be from -2 to 2");
  CHECK(refusal([](SamplingParams& p) { p.max_tokens = 0; }) == "max_tokens 0: must be at least 1");
  CHECK(refusal([](SamplingParams& p) { p.min_tokens = -1; }) ==
        "min_tokens -1: must be at least 0");
  CHECK(refusal([](SamplingParams& p) { p.min_tokens = 17; }) ==
        "min_tokens 17: must be at most max_tokens, which is 16");
  CHECK(refusal([](SamplingParams& p) { p.logprobs = -1; }) == "logprobs -1: must be at least 0");
  CHECK(refusal([](SamplingParams& p) { p.prompt_logprobs = -1; }) ==
        "prompt_logprobs -1: must be at least 0");
}

TEST_CASE("what is not a number is refused everywhere") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal([&](SamplingParams& p) { p.temperature = nan; }) != "");
  CHECK(refusal([&](SamplingParams& p) { p.top_p = nan; }) != "");
  CHECK(refusal([&](SamplingParams& p) { p.min_p = nan; }) != "");
  CHECK(refusal([&](SamplingParams& p) { p.repetition_penalty = nan; }) != "");
  CHECK(refusal([&](SamplingParams& p) { p.presence_penalty = nan; }) != "");
  CHECK(refusal([&](SamplingParams& p) {
          p.logit_bias = {{1, static_cast<float>(nan)}};
        }) == "logit_bias nan: must be a finite number");
}

TEST_CASE("what is infinite or 0 in float32 is refused like infinity and 0") {
  CHECK(refusal([](SamplingParams& p) { p.temperature = 1e60; }).find("temperature 1e+60:") == 0);
  CHECK(refusal([](SamplingParams& p) { p.temperature = 1e-60; }) == "");  // as good as 0
  for (const double value : {1e60, 1e-60}) {
    CAPTURE(value);
    CHECK(refusal([&](SamplingParams& p) {
            p.repetition_penalty = value;
          }).find("must be a finite number above 0") != std::string::npos);
  }
  CHECK(refusal([](SamplingParams& p) { p.logit_bias = {{7, 3e38f}, {8, 3e38f}}; }) == "");
  CHECK(refusal([](SamplingParams& p) {
          p.logit_bias = {{7, 3e38f}, {7, 3e38f}};
        }) == "logit_bias of token 7 adds up to inf: must be a finite number");
}

TEST_CASE("lists hold token ids, and bad words are words") {
  CHECK(refusal([](SamplingParams& p) {
          p.stop_token_ids = {3, -1};
        }) == "stop_token_ids -1: must be token ids, which are 0 or more");
  CHECK(refusal([](SamplingParams& p) { p.allowed_token_ids = {-7}; }) ==
        "allowed_token_ids -7: must be token ids, which are 0 or more");
  CHECK(refusal([](SamplingParams& p) {
          p.logit_bias = {{-2, 1.0f}};
        }) == "logit_bias of token -2: must be of token ids, which are 0 or more");
  CHECK(refusal([](SamplingParams& p) {
          p.bad_words = {{1}, {}};
        }) == "bad_words with a word of no tokens: must be words of at least one token");
  CHECK(refusal([](SamplingParams& p) {
          p.bad_words = {{1, -4}};
        }) == "bad_words -4: must be token ids, which are 0 or more");
}

TEST_CASE("the names of reasons are those of vLLM") {
  CHECK(std::string(name_of(FinishReason::stop)) == "stop");
  CHECK(std::string(name_of(FinishReason::length)) == "length");
  CHECK(std::string(name_of(FinishReason::abort)) == "abort");
}

}  // namespace
}  // namespace nvllm::runtime
