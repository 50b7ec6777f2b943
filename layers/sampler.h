// Sampler: samples the next tokens from logits that are split over the ranks by vocabulary, without
// gathering them. Every rank ends up with the same tokens, on its device.
//
// A row's tokens are judged in this order, as vLLM does it:
//   raw logits -> (log-probabilities to report are of these)
//   allowed ids, bad words, ends before the minimum length: out of the question
//   logit bias; repetition, then frequency and presence penalty
//   temperature 0: the highest (of equals, the lowest id)
//   else logits / temperature -> min_p -> top_k -> top_p (each on what the ones before left, equals
//   at a boundary are all kept) -> the highest of logit / temperature + Gumbel noise
// The noise is a function of (seed, position, token id) alone, and what min_p, top_k and top_p keep
// is found with sums in fixed point: the same tokens for any number of ranks and any batch,
// wherever the logits are the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "layers/context.h"
#include "layers/embedding.h"
#include "layers/partition.h"

namespace nvllm::layers {

// What holds for the sequence in one slot as long as it is there. Ids are below the vocabulary's
// size and numbers in their ranges: whoever takes requests has checked that.
struct SamplingRules {
  float temperature = 1;         // 0, and below 1e-5: the most likely token
  float min_p = 0;               // 0: off
  std::int32_t top_k = 0;        // 0: off
  float top_p = 1;               // 1: off
  float repetition_penalty = 1;  // > 0; of tokens in prompt or answer
  float presence_penalty = 0;    // of tokens in the answer
  float frequency_penalty = 0;
  std::uint64_t seed = 0;
  std::int32_t prompt_length = 0;  // tokens at lower positions are prompt
  // While the sequence is shorter (prompt included) no end is sampled.
  std::int32_t min_length = 0;
  // -1: none; else how many alternatives beside the sampled token's own.
  std::int32_t logprobs = -1;
  std::vector<std::int32_t> ends;
  std::vector<std::pair<std::int32_t, float>> bias;
  std::vector<std::int32_t> allowed;                 // empty: all
  std::vector<std::vector<std::int32_t>> bad_words;  // token sequences that must not come to be

  bool changes_logits() const;  // before the temperature: penalties, bias, forbidden tokens
  bool truncates() const;       // min_p, top_k or top_p

  template <class Archive>
  void serialize(Archive& archive) {
    archive(temperature, min_p, top_k, top_p, repetition_penalty, presence_penalty,
            frequency_penalty, seed, prompt_length, min_length, logprobs, ends, bias, allowed,
            bad_words);
  }
};

struct SamplerLimits {
  std::int64_t slots = 0;          // sequences at most
  std::int64_t rows = 0;           // logit rows of a step at most
  std::int64_t max_logprobs = 20;  // alternatives of a row at most
  // Words of 32 bits that ends, bias and bad words of one sequence may take together (bias takes
  // two each, a bad word its length and one). Allowed ids may be any number.
  static constexpr std::int64_t kListWords = 4096;
};

// How many words the lists of these rules take.
std::int64_t list_words(const SamplingRules& rules);

// One step's rows of logits. Device memory unless said otherwise.
struct SampleStep {
  TensorView logits;  // [rows, this rank's part], float32, rows apart; may be overwritten
  const LogitsCall* head = nullptr;  // what makes them; nullptr: they are there
  TensorView slots;      // [rows], int32: for which sequence a token is sampled; negative: none
  TensorView positions;  // [rows], int32: of the token that is sampled, or the target
  TensorView targets;    // [rows], int32: whose log-probability is wanted instead of a sampled
                         // token's (prompt logprobs), or -1; rows with a target have no slot
  TensorView history;    // [blocks, block_size], int32: tokens, by blocks
  // [rows, blocks], int32, rows may lie apart: of each row's sequence; not read for rows without
  // slot.
  TensorView block_table;
  // Host: what the step's rows need, so that nothing is launched for nothing.
  bool penalties = false;      // some row's rules change logits
  bool top_k_top_p = false;    // some row's rules truncate
  std::int32_t logprobs = -1;  // the most alternatives any row reports; -1: no logprobs at all

  std::int64_t rows() const { return logits.shape[0]; }
};

// Where the results are, in device memory, good until the next step. Row r: of SampleStep's row r.
struct Sampled {
  // [rows], int32: sampled, or the target; -1: neither, or all logits are NaN.
  TensorView tokens;
  // Of the raw logits; only where the step asks for logprobs, and only of rows whose rules do or
  // that have a target.
  TensorView logprob;  // [rows], float32: of that token
  TensorView rank;     // [rows], int32: tokens with a higher logit, plus 1
  TensorView top_ids;  // [rows, logprobs], int32: the most likely first, of equals the lower id
  TensorView top_logprobs;  // [rows, logprobs], float32
};

// Used by one thread.
class Sampler {
 public:
  // own: this rank's part of the vocabulary; stride: the widest part of any rank.
  Sampler(Range own, std::int64_t stride, std::int64_t vocabulary, Shard shard,
          const SamplerLimits& limits, Backend& backend);

  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Device memory that one takes; by arithmetic. (Ledger: "sampler".)
  static std::size_t bytes(std::int64_t stride, std::int64_t vocabulary, Shard shard,
                           const SamplerLimits& limits);

  // From the next step enqueued on, the slot's rules are these. Does not wait for the device. Not
  // to be captured.
  void set(std::int64_t slot, const SamplingRules& rules, Stream& stream);

  // Enqueues it: a collective call of all ranks. last_tokens: [slots], int32, gets each sampled
  // token at its slot. No allocation, no synchronisation; also with no rows. May be captured in a
  // graph, and then samples by the rules that hold when the graph runs.
  Sampled sample(const SampleStep& step, TensorView last_tokens, const Context& context);

 private:
  struct Memory;
  struct Piece;

  void apply_penalties(const Piece& piece) const;
  void top_k_top_p(const Piece& piece) const;
  void sample_tokens(const Piece& piece) const;
  void log_probabilities(const Piece& piece) const;

  const Range own_;
  const std::int64_t vocabulary_;
  const Shard shard_;
  const SamplerLimits limits_;
  const std::unique_ptr<Memory> memory_;
  std::vector<std::uint32_t> words_;  // of set()
};

}  // namespace nvllm::layers
