// Sequence: what the scheduler knows of one answer that is coming to be.
//
// A sequence's tokens are, in this order: computed (their rows were scheduled, so their keys and values are
// in its blocks, or will be before anything that is scheduled later), known but not computed, and drawing
// (rows that are in flight draw them; the host does not know them yet).
//
//   positions   0 ............ computed ..... tokens.size() ...... length() .......... limit
//
// A sequence that decodes has computed + 1 == length(): its next row reads the token that was drawn last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvcache/block_manager.h"
#include "layers/sampler.h"
#include "runtime/scheduler.h"

namespace nvllm::runtime {

struct Sequence {
  // waiting: without slot and blocks (perhaps with host blocks). running: with both. leaving: all its rows
  // were scheduled, some results are due. over: ended; results that are still due are dropped.
  enum class Place : std::uint8_t { waiting, running, leaving, over };

  SequenceId id = 0;
  std::uint64_t number = 0;  // of its arrival: the order in which everything is given
  std::vector<std::int32_t> tokens;
  layers::SamplingRules rules;
  std::vector<std::int32_t> stop_tokens;
  std::int64_t prompt = 0;  // tokens of it
  std::int64_t limit = 0;   // tokens it may have in all
  std::int32_t prompt_logprobs = -1;

  Place place = Place::waiting;
  std::uint32_t slot = 0;
  std::int64_t computed = 0;
  std::int64_t drawing = 0;
  std::int64_t results_due = 0;  // steps in flight whose result has something for it
  std::int64_t scored = 0;       // prompt logprobs that were passed on

  std::int64_t capacity = 0;   // tokens its blocks hold
  std::int64_t committed = 0;  // tokens that others can find
  std::int64_t resident = 0;   // chunked: so many blocks, the first, stay on the device
  Residence residence = Residence::none;
  std::vector<kvcache::BlockId> host_blocks;  // waiting: they hold the tokens that are computed

  std::int64_t lost = 0;            // tokens that were computed, and have to be once more
  std::int32_t cached_tokens = -1;  // of the prompt, when it began; -1: it did not
  std::int32_t preemptions = 0;

  std::int64_t known() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t length() const { return known() + drawing; }
  std::int64_t left() const { return length() - computed; }
  bool decodes() const { return left() == 1 && computed >= prompt; }

  // Whether logprobs of its prompt are still to come. Every row of such a prompt has to be computed.
  bool scores_prompt() const { return prompt_logprobs >= 0 && scored < prompt - 1; }
  // Of so many rows from position `from` on: how many are scored, because the token after it is the
  // prompt's.
  std::int64_t scored_rows(std::int64_t from, std::int64_t rows) const {
    return scores_prompt() ? std::clamp<std::int64_t>(prompt - 1 - from, 0, rows) : 0;
  }
};

}  // namespace nvllm::runtime
