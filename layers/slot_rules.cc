#include "layers/slot_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace nvllm::layers {
namespace {

using kernels::SlotParams;

constexpr float kLeastTemperature = 1e-5f;

bool draws_at_random(const SamplingRules& rules) {
  return rules.temperature >= kLeastTemperature;
}

bool penalizes(const SamplingRules& rules) {
  return rules.repetition_penalty != 1 || rules.presence_penalty != 0 ||
         rules.frequency_penalty != 0;
}

std::uint32_t fixed_share(float share) {
  if (!(share < 1)) return 0;
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(std::max(share, 0.0f) * 0x1p32f));
}

}  // namespace

SlotParams slot_rules(const SamplingRules& rules) {
  SlotParams slot;
  slot.seed = rules.seed;
  slot.inverse_temperature = draws_at_random(rules) ? 1 / rules.temperature : 0;
  slot.has_min_p = rules.min_p > 0;
  slot.log_min_p = rules.min_p > 0 ? std::log(rules.min_p) : 0;
  slot.top_k = std::max(rules.top_k, 0);
  slot.top_p = fixed_share(rules.top_p);
  slot.flags = (rules.adjusts() ? SlotParams::kChangesLogits : 0) |
               (rules.filters() ? SlotParams::kTruncates : 0) |
               (rules.allowed.empty() ? 0 : SlotParams::kAllowed) |
               (penalizes(rules) ? SlotParams::kPenalties : 0);
  slot.repetition_penalty = rules.repetition_penalty;
  slot.presence_penalty = rules.presence_penalty;
  slot.frequency_penalty = rules.frequency_penalty;
  slot.prompt_length = rules.prompt_length;
  slot.min_length = rules.least_length;
  slot.logprobs = rules.logprobs;
  return slot;
}

void append_lists(const SamplingRules& rules, SlotParams& slot, std::vector<std::uint32_t>& words) {
  const auto append = [&](std::int64_t word) {
    words.push_back(static_cast<std::uint32_t>(word));
    return 1;
  };
  for (const std::int32_t end : rules.ends) slot.ends += append(end);
  std::map<std::int32_t, float> bias;  // each id once: its logit is changed by whoever comes first
  for (const auto& entry : rules.bias) bias[entry.first] += entry.second;
  for (const auto& entry : bias) slot.biases += append(entry.first);
  for (const auto& entry : bias) append(std::bit_cast<std::uint32_t>(entry.second));
  for (const auto& word : rules.bad_words) {
    if (word.empty()) continue;
    slot.bad_tokens += static_cast<std::int32_t>(word.size());
    slot.bad_words += append(slot.bad_tokens);
  }
  for (const auto& word : rules.bad_words) {
    for (const std::int32_t token : word) append(token);
  }
}

bool SamplingRules::adjusts() const {
  return penalizes(*this) || !bias.empty() || !allowed.empty() || !bad_words.empty() ||
         (!ends.empty() && least_length > prompt_length);
}

bool SamplingRules::filters() const {
  return draws_at_random(*this) && (min_p > 0 || top_k > 0 || top_p < 1);
}

std::int64_t list_words(const SamplingRules& rules) {
  std::size_t words = rules.ends.size() + 2 * rules.bias.size();
  for (const auto& word : rules.bad_words) words += word.size() + 1;
  return static_cast<std::int64_t>(words);
}

}  // namespace nvllm::layers
