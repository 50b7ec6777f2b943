// How the memory of a paged cache is divided where its layers are two groups: those that keep all
// tokens, and those with a window, which keep no more than that (kvcache/window_blocks.h).
//
// Memory that one group does not need, the other cannot use. Long sequences need many blocks of the
// former and few of the latter; short ones, within the window, as many of these as of those. So the
// group of windows gets
//   1. no more than leaves room for one sequence of the longest length;
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

// Blocks of the group of windows, of every rank. options: resolved. window: tokens.
std::int64_t choose_window_blocks(const EngineOptions& options, std::int64_t model_limit,
                                  DeviceKind device, std::span<const RankMemory> ranks,
                                  std::int64_t window);

// What remains beside so many blocks of the group of windows: they count as `fixed`.
std::vector<RankMemory> ranks_beside_windows(std::span<const RankMemory> ranks,
                                             std::int64_t window_blocks);

}  // namespace nvllm::runtime
