// What rank 0 tells every rank for one step, and what a step gives back.
//
// A step message is a delta: ranks remember each slot's sequence (how many tokens it has, how many
// of them are computed, its blocks), so a steady decode step says next to nothing. A rank's state
// follows from the messages alone, so all ranks are always of one mind.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/archive.h"
#include "kvcache/paged/paged_cache.h"
#include "layers/sampler.h"
#include "runtime/request.h"

namespace nvllm::runtime {

// A sequence takes a slot: a new one, or one that was preempted and comes back.
struct SlotStart {
  std::uint32_t slot = 0;
  // All that are known: the prompt, and what was generated before.
  std::vector<std::int32_t> tokens;
  // So many of those are in its blocks already (cached prefix, swapped in); less than all.
  std::int32_t computed = 0;
  layers::SamplingRules rules;
  std::int32_t prompt_logprobs = -1;  // of the prompt's tokens that are computed now; -1: none
  std::int32_t resident = 0;          // chunked: of its first blocks, so many stay on the device

  template <class Archive>
  void serialize(Archive& archive) {
    archive(slot, tokens, computed, rules, prompt_logprobs, resident);
  }
};

// A slot's sequence gets one more block at the end of its table.
struct BlockAppend {
  std::uint32_t slot = 0;
  kvcache::BlockId block = 0;
};

// With pipeline stages: the token that was sampled last in a slot. Only the last stage's devices
// have seen it; on all stages it counts as one of SlotStart::tokens from now on.
struct SlotToken {
  std::uint32_t slot = 0;
  std::int32_t token = 0;
};

// So many next tokens of a slot's sequence are computed. They are those of SlotStart::tokens while
// there are any left, then the token that was sampled last: one row. The last row of a sequence
// samples a token if it is the last that is known.
struct StepRows {
  std::uint32_t slot = 0;
  std::uint32_t rows = 0;
};

// Blocks of the layers with a window that are a group of their own (kvcache/window_blocks.h): the
// same as in StepMessage of that group's blocks.
struct WindowBlocksDelta {
  std::vector<kvcache::BlockCopy> swap_out, swap_in;
  std::vector<BlockAppend> blocks;  // of a block that was released already: block 0

  bool empty() const { return swap_out.empty() && swap_in.empty() && blocks.empty(); }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(swap_out, swap_in, blocks);
  }
};

// A copy of all states that linear attention keeps of a sequence.
struct StateCopy {
  std::int32_t from = 0, to = 0;
};

// Copies of such states between slots, places of snapshots (kvcache/state_snapshots.h) and places
// in host memory. Each slot, and each place but those of `save`, is copied to once.
struct StateCopies {
  std::vector<StateCopy> swap_out = {};  // slot to host
  std::vector<StateCopy> swap_in = {};   // host to slot
  std::vector<StateCopy> restore = {};   // snapshot to slot
  std::vector<StateCopy> save =
      {};  // slot to snapshot, behind the step's rows, one after the other

  bool empty() const {
    return swap_out.empty() && swap_in.empty() && restore.empty() && save.empty();
  }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(swap_out, swap_in, restore, save);
  }
};

// In the order in which it is followed.
struct StepMessage {
  std::uint64_t number = 0;                  // 1, 2, ...
  std::vector<std::uint32_t> ended;          // slots that are free from now on
  std::vector<kvcache::BlockCopy> swap_out;  // device to host
  std::vector<kvcache::BlockCopy> swap_in;   // host to device
  std::vector<SlotStart> started;
  std::vector<BlockAppend> blocks;
  std::vector<SlotToken> tokens;
  WindowBlocksDelta windows;
  StateCopies states;
  // One row of each slot of the last step, in its order, but the ended ones.
  bool same_rows = false;
  std::vector<StepRows> rows;  // otherwise: these

  template <class Archive>
  void serialize(Archive& archive) {
    // Of windows and states nothing travels where nothing is new, as in models without them.
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
    TokenLogprobs logprobs;  // empty unless asked for
  };
  struct PromptLogprobs {
    std::uint32_t slot = 0;
    std::vector<TokenLogprobs> tokens;  // of this step's rows: of the token after each
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
