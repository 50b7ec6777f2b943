// Divides the memory of a paged cache between two groups of layers: those that keep all tokens, and
// those with a window, which keep only the window (kvcache/window_blocks.h).
//
// One group cannot use memory that the other does not need. Long sequences need many blocks of the
// first group and few of the second; sequences shorter than the window need equally many of both.
// So the window group gets
//   1. at most as much as still lets one sequence of maximum length fit;
//   2. what it needs when as many sequences of that length run as fit at all; or, if that is more,
//   3. windows of max_num_seqs sequences and a step's rows, but not more than half of the memory.
// By 2 and 3 at least half as many of the longest sequences fit as could with any other division;
// and short ones find half of the memory for their windows, or as much as they can use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory/memory_plan.h"

namespace nvllm::runtime {

// Number of blocks of the window group on every rank. options: resolved. window: tokens.
std::int64_t choose_window_blocks(const EngineOptions& options, std::int64_t model_limit,
                                  DeviceKind device, std::span<const RankMemory> ranks,
                                  std::int64_t window);

// The ranks' memory with this many blocks of the window group, which count as `fixed`.
std::vector<RankMemory> ranks_beside_windows(std::span<const RankMemory> ranks,
                                             std::int64_t window_blocks);

}  // namespace nvllm::runtime
