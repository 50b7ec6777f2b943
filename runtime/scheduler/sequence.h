// Sequence: one answer to one request, as the scheduler sees it.
//
// Its tokens are, in this order: computed (their rows were scheduled, so their keys and values are
// in its blocks, or will be before anything that is scheduled later), known but not computed, and
// pending (rows in flight sample them; the host does not know them yet).
//
//    positions   0 ............ computed ..... tokens.size() ...... length() .......... max_length
//
// A sequence that decodes has computed + 1 == length(): its next row reads the token that was
// sampled last.
//
// Other types represent a sequence elsewhere: SlotStart is what rank 0 broadcasts of it,
// SlotSequence what every rank derives from the messages, and kvcache::StepSequence the rows of one
// step for the cache, which does not depend on the runtime.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvcache/block_manager.h"
#include "kvcache/state_snapshots.h"
#include "layers/sampler.h"
#include "runtime/options.h"

namespace nvllm::runtime {

using kvcache::SequenceId;

struct Sequence {
  // From the request (set by RequestTracker).
  SequenceId id = 0;
  std::vector<std::int32_t> tokens = {};  // the prompt, then generated tokens
  layers::SamplingRules rules = {};
  std::int32_t max_tokens = 0;                 // maximum number of generated tokens; at least 1
  std::vector<std::int32_t> stop_tokens = {};  // EOS (unless it is ignored) and stop ids
  std::int32_t prompt_logprobs = -1;           // alternatives per token; -1: not requested

  // The scheduler's state. waiting: without slot and blocks (perhaps with host blocks). running:
  // with both. finishing: all rows are scheduled, some results are due. finished: results that are
  // still due are dropped.
  enum class State : std::uint8_t { waiting, running, finishing, finished };
  State state = State::waiting;
  std::uint64_t arrival = 0;  // lower numbers are older, and always served first
  std::int64_t prompt_length = 0, max_length = 0;
  std::uint32_t slot = 0;
  std::int64_t computed = 0, pending = 0;
  std::int64_t sent = 0;         // running: tokens sent to the ranks, by SlotStart or later
  std::int64_t results_due = 0;  // steps in flight whose result contains something for it
  // Number of prompt logprobs sent; recomputing the prompt does not send them again.
  std::int64_t prompt_logprobs_sent = 0;

  // Its memory (managed by SequenceMemory).
  std::int64_t capacity = 0;   // tokens that fit in its blocks
  std::int64_t committed = 0;  // tokens that other sequences can find in the prefix cache
  std::int64_t resident = 0;   // chunked: how many of its first blocks stay on the device
  Residence residence = Residence::none;
  // Waiting: host blocks with the computed tokens, except those of the first blocks_before_host
  // blocks, which were already freed (SchedulerLimits::window).
  std::vector<kvcache::BlockId> host_blocks = {};
  std::int64_t blocks_before_host = 0;
  // The same for the window group, if there is one: the blocks that the next row needs.
  std::vector<kvcache::BlockId> host_window_blocks = {};

  // Linear attention with snapshots: the token count at which the next snapshot is taken, and that
  // of the snapshot near the end of the tokens known at admission; 0: none.
  std::int64_t next_snapshot = 0, end_snapshot = 0;
  // Snapshots that were taken, but are not in the prefix cache yet: not all tokens before them are
  // known.
  struct Snapshot {
    std::int64_t tokens = 0;
    kvcache::SnapshotId place = kvcache::kNoSnapshot;
  };
  std::vector<Snapshot> snapshots_due = {};
  kvcache::BlockManager::Content answer_snapshot = kvcache::BlockManager::kNoContent;  // the newest
  std::vector<kvcache::BlockId> host_state = {};  // waiting: where its states are stored, if any

  std::int64_t lost = 0;            // tokens to recompute because of preemption
  std::int32_t cached_tokens = -1;  // cached prompt tokens when it was first scheduled; -1: not yet
  std::int32_t preemptions = 0;

  std::int64_t known() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t length() const { return known() + pending; }
  std::int64_t uncomputed() const { return length() - computed; }
  bool decodes() const { return uncomputed() == 1 && computed >= prompt_length; }

  // Whether logprobs of its prompt are still due. Every row of such a prompt must be computed.
  bool wants_prompt_logprobs() const {
    return prompt_logprobs >= 0 && prompt_logprobs_sent < prompt_length - 1;
  }
  // How many of `rows` rows from position `from` yield a prompt logprob, because the next token is
  // one of the prompt's.
  std::int64_t prompt_logprob_rows(std::int64_t from, std::int64_t rows) const {
    if (!wants_prompt_logprobs()) return 0;
    return std::clamp<std::int64_t>(prompt_length - 1 - from, 0, rows);
  }
};

}  // namespace nvllm::runtime
