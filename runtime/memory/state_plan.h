// Divides the KV cache's memory between blocks and snapshots of linear attention's states
// (kvcache/state_snapshots.h), and the swap space between blocks and states.
//
// A state takes as much memory as the keys and values of hundreds or thousands of tokens, however
// short its prefix is. So by default snapshots take a quarter of the memory, but
//   1. no more than can be used: one per state_snapshot_tokens tokens of all sequences;
//   2. with --max-model-len, no more than leaves room for one sequence of that length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/memory_plan.h"

namespace nvllm::runtime {

// Number of snapshots on every rank; 0: prefixes cannot be cached. options: resolved. An Error if
// the number that the options request leaves no memory for a block.
std::int64_t choose_state_snapshots(const EngineOptions& options, std::int64_t model_limit,
                                    DeviceKind device, std::span<const RankMemory> ranks);

// The ranks' memory with this many snapshots, which count as `fixed`.
std::vector<RankMemory> ranks_beside_snapshots(std::span<const RankMemory> ranks,
                                               std::int64_t snapshots);

// One line about the snapshots of a model with linear attention and prefix caching.
std::string describe_snapshots(std::span<const RankMemory> ranks, std::int64_t snapshots);

// Number of sequences whose states fit in half of a rank's swap_bytes. 0: the model has no states,
// or the space is too small.
std::int64_t choose_host_states(const EngineOptions& options, std::uint64_t swap_bytes,
                                std::uint64_t largest_state);

}  // namespace nvllm::runtime
