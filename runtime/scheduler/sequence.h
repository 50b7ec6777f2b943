// Sequence: one answer to one request, on its way through the scheduler.
//
// Its tokens are, in this order: computed (their rows were scheduled, so their keys and values are
// in its blocks, or will be before anything that is scheduled later), known but not computed, and
// pending (rows in flight sample them; the host does not know them yet).
//
//   positions   0 ............ computed ..... tokens.size() ...... length() .......... max_length
//
// A sequence that decodes has computed + 1 == length(): its next row reads the token that was
// sampled last.
//
// Sequence has other shapes elsewhere, each with what its place may know: SlotStart is what rank 0
// broadcasts of it, SlotSequence what every rank remembers from such messages, and
// kvcache::StepSequence the rows of one step that the cache works on, without any runtime.
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
  // What the request says (RequestTracker fills these).
  SequenceId id = 0;
  std::vector<std::int32_t> tokens = {};  // the prompt, then the answer
  layers::SamplingRules rules = {};
  std::int32_t max_tokens = 0;                 // of the answer; at least 1
  std::vector<std::int32_t> stop_tokens = {};  // EOS (unless it is ignored) and stop ids
  std::int32_t prompt_logprobs = -1;           // alternatives of each token; -1: none are wanted

  // What the scheduler knows of it. waiting: without slot and blocks (perhaps with host blocks).
  // running: with both. finishing: all its rows were scheduled, some results are due. finished:
  // results that are still due are dropped.
  enum class State : std::uint8_t { waiting, running, finishing, finished };
  State state = State::waiting;
  std::uint64_t arrival = 0;  // a number: older sequences are always served first
  std::int64_t prompt_length = 0, max_length = 0;
  std::uint32_t slot = 0;
  std::int64_t computed = 0, pending = 0;
  std::int64_t sent = 0;  // running: tokens that the ranks have been sent, in SlotStart or later
  std::int64_t results_due = 0;  // steps in flight whose result has something for it
  // So many were sent; a prompt that is computed again does not send them again.
  std::int64_t prompt_logprobs_sent = 0;

  // Its memory (SequenceMemory).
  std::int64_t capacity = 0;   // tokens its blocks hold
  std::int64_t committed = 0;  // tokens that other sequences can find in the prefix cache
  std::int64_t resident = 0;   // chunked: so many blocks, the first, stay on the device
  Residence residence = Residence::none;
  // Waiting: they hold the tokens that are computed, but those of the first blocks that were free
  // already (SchedulerLimits::window).
  std::vector<kvcache::BlockId> host_blocks = {};
  std::int64_t blocks_before_host = 0;
  // Likewise of the group of windows, if there is one: of the blocks that the next row needs.
  std::vector<kvcache::BlockId> host_window_blocks = {};

  // Linear attention, where snapshots of states are taken: the number of tokens behind which the
  // next one is, and the one at the end of what was known when it was admitted; 0: none.
  std::int64_t next_snapshot = 0, end_snapshot = 0;
  // Taken, but not in the prefix cache yet: not all tokens before them are known.
  struct Snapshot {
    std::int64_t tokens = 0;
    kvcache::SnapshotId place = kvcache::kNoSnapshot;
  };
  std::vector<Snapshot> snapshots_due = {};
  kvcache::BlockManager::Content answer_snapshot = kvcache::BlockManager::kNoContent;  // the newest
  std::vector<kvcache::BlockId> host_state = {};  // waiting: where its states are, if any are kept

  std::int64_t lost = 0;            // tokens that preemption makes the device compute once more
  std::int32_t cached_tokens = -1;  // of the prompt, when it was first scheduled; -1: not yet
  std::int32_t preemptions = 0;

  std::int64_t known() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t length() const { return known() + pending; }
  std::int64_t uncomputed() const { return length() - computed; }
  bool decodes() const { return uncomputed() == 1 && computed >= prompt_length; }

  // Whether logprobs of its prompt are still to come. Every row of such a prompt has to be
  // computed.
  bool wants_prompt_logprobs() const {
    return prompt_logprobs >= 0 && prompt_logprobs_sent < prompt_length - 1;
  }
  // Of so many rows from position `from` on: how many give a prompt logprob, because the token
  // after each is the prompt's.
  std::int64_t prompt_logprob_rows(std::int64_t from, std::int64_t rows) const {
    if (!wants_prompt_logprobs()) return 0;
    return std::clamp<std::int64_t>(prompt_length - 1 - from, 0, rows);
  }
};

}  // namespace nvllm::runtime
