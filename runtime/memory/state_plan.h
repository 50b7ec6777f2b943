// How much of the KV cache's memory snapshots of linear attention's states get
// (kvcache/state_snapshots.h), and how much of the swap space such states do.
//
// A state takes as much as keys and values of hundreds or thousands of tokens, however short the
// prefix is that it belongs to. So by default snapshots take a quarter of the memory, but
//   1. no more than there is to find: one for each state_snapshot_tokens of all sequences;
//   2. with --max-model-len, no more than leaves room for one sequence of that length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/memory_plan.h"

namespace nvllm::runtime {

// Snapshots on every rank; 0: prefixes cannot be cached. options: resolved. An Error if as many as
// the options say leave no room for a block.
std::int64_t choose_state_snapshots(const EngineOptions& options, std::int64_t model_limit,
                                    DeviceKind device, std::span<const RankMemory> ranks);

// What remains beside so many: they count as `fixed`.
std::vector<RankMemory> ranks_beside_snapshots(std::span<const RankMemory> ranks,
                                               std::int64_t snapshots);

// Of a model with linear attention whose prefixes are to be cached, in one line.
std::string describe_snapshots(std::span<const RankMemory> ranks, std::int64_t snapshots);

// Sequences whose states fit in half of a rank's swap space, of so many bytes. 0: the model has
// none, or too little space.
std::int64_t choose_host_states(const EngineOptions& options, std::uint64_t swap_bytes,
                                std::uint64_t largest_state);

}  // namespace nvllm::runtime
