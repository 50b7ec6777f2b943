// How tokens are chosen, where a request does not say it itself. Names and meanings as vLLM's.

#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

using runtime::SamplingParams;

constexpr double kMostTemperature = 1e6;
constexpr double kMostPenalty = 1e6;

template <typename Field, typename Value>
void set(Options& options, Field SamplingParams::*field, Value value) {
  options.sampling.push_back(
      [field, value = Field(std::move(value))](SamplingParams& params) { params.*field = value; });
}

void store_max_tokens(Options& options, const OptionValue& value) {
  if (value.text() == "none") {
    set(options, &SamplingParams::max_tokens, std::nullopt);
  } else {
    set(options, &SamplingParams::max_tokens, value.as<std::int32_t>(1));
  }
}

void store_top_p(Options& options, const OptionValue& value) {
  const double top_p = value.real(0, 1);
  if (top_p == 0) refuse(value.name(), " 0: leaves no token; pass more than 0, or --temperature 0");
  set(options, &SamplingParams::top_p, top_p);
}

void store_repetition_penalty(Options& options, const OptionValue& value) {
  const double penalty = value.real(0, kMostPenalty);
  if (penalty == 0) refuse(value.name(), " 0: is divided by; pass more than 0, 1 for none");
  set(options, &SamplingParams::repetition_penalty, penalty);
}

}  // namespace

OptionRows sampling_rows() {
  return {
      {"--max-tokens", nullptr, "N|none",
       "the longest answer, in tokens; none: as long as there is room", "16", store_max_tokens},
      {"--min-tokens", nullptr, "N", "how many tokens come before an answer may end", "0",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::min_tokens, value.as<std::int32_t>(0));
       }},
      {"--n", nullptr, "N", "answers to each prompt", "1",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::n, value.as<std::int32_t>(1));
       }},
      {"--temperature", nullptr, "T", "0: always the most likely token", "1",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::temperature, value.real(0, kMostTemperature));
       }},
      {"--top-p", nullptr, "P", "only the most likely tokens, as many as make up P together", "1",
       store_top_p},
      {"--top-k", nullptr, "K", "only the K most likely tokens; 0 or -1: all", "0",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::top_k, value.as<std::int32_t>(-1));
       }},
      {"--min-p", nullptr, "P", "only tokens at least P times as likely as the most likely one",
       "0",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::min_p, value.real(0, 1));
       }},
      {"--repetition-penalty", nullptr, "F",
       "over 1: tokens of the prompt and the answer become less likely", "1",
       store_repetition_penalty},
      {"--presence-penalty", nullptr, "F", "taken from the logit of a token that the answer has",
       "0",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::presence_penalty, value.real(-2, 2));
       }},
      {"--frequency-penalty", nullptr, "F", "the same for every time that the answer has it", "0",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::frequency_penalty, value.real(-2, 2));
       }},
      {"--ignore-eos", "--no-ignore-eos", nullptr, "goes on after the model's end token", "off",
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::ignore_eos, value.on());
       }},
      {"--stop-token-ids", nullptr, "ID,ID...", "tokens that end an answer, too", nullptr,
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::stop_token_ids, value.ids());
       }},
      {"--logprobs", nullptr, "N",
       "adds each token's log probability, and those of the N most likely", nullptr,
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::logprobs, value.as<std::int32_t>(0));
       }},
      {"--prompt-logprobs", nullptr, "N", "the same for the prompt's tokens", nullptr,
       [](Options& options, const OptionValue& value) {
         set(options, &SamplingParams::prompt_logprobs, value.as<std::int32_t>(0));
       }},
  };
}

}  // namespace nvllm::launcher
