// StepMessage, which rank 0 broadcasts for each step, and StepResult, which a step returns.
//
// A step message is a delta: ranks keep each slot's sequence (its tokens, how many of them are
// computed, its blocks), so a steady decode step is almost empty. A rank's state follows from the
// messages alone, so all ranks always agree.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/archive.h"
#include "kvcache/paged/paged_cache.h"
#include "layers/sampler.h"
#include "runtime/request.h"

namespace nvllm::runtime {

// A sequence starts in a slot: a new one, or a preempted one that resumes.
struct SlotStart {
  std::uint32_t slot = 0;
  // All known tokens: the prompt, and what was generated before.
  std::vector<std::int32_t> tokens;
  // How many of them are in its blocks already (cached prefix, swapped in); less than all.
  std::int32_t computed = 0;
  layers::SamplingRules rules;
  std::int32_t prompt_logprobs = -1;  // for the prompt tokens computed now; -1: none
  std::int32_t resident = 0;          // chunked: how many of its first blocks stay on the device

  template <class Archive>
  void serialize(Archive& archive) {
    archive(slot, tokens, computed, rules, prompt_logprobs, resident);
  }
};

// Appends a block to the table of a slot's sequence.
struct BlockAppend {
  std::uint32_t slot = 0;
  kvcache::BlockId block = 0;
};

// With pipeline stages: the token sampled last in a slot, which only the last stage's devices have.
// On all stages it counts as one of SlotStart::tokens from now on.
struct SlotToken {
  std::uint32_t slot = 0;
  std::int32_t token = 0;
};

// Computes this many next tokens of a slot's sequence: those of SlotStart::tokens while any are
// left, then the token that was sampled last (one row). The last row samples a token if it reads
// the last known token.
struct StepRows {
  std::uint32_t slot = 0;
  std::uint32_t rows = 0;
};

// Changes to the blocks of the window group (kvcache/window_blocks.h), with the same meaning as in
// StepMessage.
struct WindowBlocksDelta {
  std::vector<kvcache::BlockCopy> swap_out, swap_in;
  std::vector<BlockAppend> blocks;  // block 0 if the block was already released

  bool empty() const { return swap_out.empty() && swap_in.empty() && blocks.empty(); }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(swap_out, swap_in, blocks);
  }
};

// A copy of all states of linear attention of one sequence.
struct StateCopy {
  std::int32_t from = 0, to = 0;
};

// Copies of states between slots, snapshots (kvcache/state_snapshots.h) and host memory. Each slot
// is the target of one copy, and so is each other place, except in `save`.
struct StateCopies {
  std::vector<StateCopy> swap_out = {};  // slot to host
  std::vector<StateCopy> swap_in = {};   // host to slot
  std::vector<StateCopy> restore = {};   // snapshot to slot
  std::vector<StateCopy> save = {};      // slot to snapshot, after the step's rows, in order

  bool empty() const {
    return swap_out.empty() && swap_in.empty() && restore.empty() && save.empty();
  }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(swap_out, swap_in, restore, save);
  }
};

// Ranks apply the members in this order.
struct StepMessage {
  std::uint64_t number = 0;                  // 1, 2, ...
  std::vector<std::uint32_t> ended;          // free from now on
  std::vector<kvcache::BlockCopy> swap_out;  // device to host
  std::vector<kvcache::BlockCopy> swap_in;   // host to device
  std::vector<SlotStart> started;
  std::vector<BlockAppend> blocks;
  std::vector<SlotToken> tokens;
  WindowBlocksDelta windows;
  StateCopies states;
  // One row for each slot of the last step, in its order, except ended ones.
  bool same_rows = false;
  std::vector<StepRows> rows;  // otherwise: these

  template <class Archive>
  void serialize(Archive& archive) {
    // Windows and states are sent only if they change.
    constexpr std::uint8_t kSameRows = 1, kWindows = 2, kStates = 4;
    auto flags =
        static_cast<std::uint8_t>((same_rows ? kSameRows : 0) | (windows.empty() ? 0 : kWindows) |
                                  (states.empty() ? 0 : kStates));
    archive(number, ended, swap_out, swap_in, started, blocks, tokens, flags, rows);
    same_rows = (flags & kSameRows) != 0;
    if ((flags & kWindows) != 0) archive(windows);
    if ((flags & kStates) != 0) archive(states);
  }
};

// Rank 0's results of a step, in the order of its rows.
struct StepResult {
  struct Token {
    std::uint32_t slot = 0;
    std::int32_t token = 0;  // -1: no logit is a number
    TokenLogprobs logprobs;  // empty unless requested
  };
  struct PromptLogprobs {
    std::uint32_t slot = 0;
    std::vector<TokenLogprobs> tokens;  // for each of this step's rows: about the token after it
  };
  std::uint64_t number = 0;
  std::vector<Token> tokens;
  std::vector<PromptLogprobs> prompts;
};

}  // namespace nvllm::runtime

template <>
inline constexpr bool nvllm::ipc::kArchiveAsBytes<nvllm::kvcache::BlockCopy> = true;
template <>
inline constexpr bool nvllm::ipc::kArchiveAsBytes<nvllm::runtime::BlockAppend> = true;
template <>
inline constexpr bool nvllm::ipc::kArchiveAsBytes<nvllm::runtime::SlotToken> = true;
template <>
inline constexpr bool nvllm::ipc::kArchiveAsBytes<nvllm::runtime::StateCopy> = true;
template <>
inline constexpr bool nvllm::ipc::kArchiveAsBytes<nvllm::runtime::StepRows> = true;
