#pragma once

#include <cstdint>

#include "runtime/engine_options.h"
#include "runtime/memory_budget.h"
#include "runtime/memory_plan.h"

namespace nvllm::runtime {

// Chunked: how many blocks stay on the device, and how many sequences may run that do not stay there whole: each of
// these has a block there that is not full, and steps fill others. All of them together never need more slots
// than there are blocks.
// plan: has its blocks, of which no more than `useful` would be of use; it gets the rest. An Error if there is no
// room for what one sequence needs.
void choose_device_slots(const EngineOptions& options, const MemoryBudget& budget,
                         std::int64_t useful, MemoryPlan& plan);

}  // namespace nvllm::runtime
