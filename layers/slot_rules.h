// A sequence's rules in the form in which kernels read them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling/sampling_params.h"
#include "layers/sampler.h"

namespace nvllm::layers {

kernels::SlotParams slot_rules(const SamplingRules& rules);  // without lists

// Writes the lists (kernels/sampling/sampling_params.h) and says in `slot` how long they are.
void append_lists(const SamplingRules& rules, kernels::SlotParams& slot,
                  std::vector<std::uint32_t>& words);

}  // namespace nvllm::layers
