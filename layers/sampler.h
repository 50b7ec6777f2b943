// Sampler: samples the next tokens from logits that are split over the ranks by vocabulary, without
// gathering them. Every rank gets the same tokens, on its device.
//
// Rules apply to a row in the order of vLLM:
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

// The sampling rules of the sequence in one slot. Ids are below the vocabulary's size and numbers
// are in range: whoever accepts requests has checked that.
struct SamplingRules {
  float temperature = 1;         // below 1e-5: greedy
  float min_p = 0;               // 0: off
  std::int32_t top_k = 0;        // 0: off
  float top_p = 1;               // 1: off
  float repetition_penalty = 1;  // > 0; of tokens in prompt or output
  float presence_penalty = 0;    // of tokens in the output
  float frequency_penalty = 0;
  std::uint64_t seed = 0;
  std::int32_t prompt_length = 0;  // tokens at lower positions belong to the prompt
  // Until the sequence (prompt included) has this length, no end token is sampled.
  std::int32_t min_length = 0;
  // -1: none; otherwise the number of alternatives besides the sampled token.
  std::int32_t logprobs = -1;
  std::vector<std::int32_t> ends;
  std::vector<std::pair<std::int32_t, float>> bias;
  std::vector<std::int32_t> allowed;                 // empty: all
  std::vector<std::vector<std::int32_t>> bad_words;  // token sequences that must not occur

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
  std::int64_t slots = 0;          // max. sequences
  std::int64_t rows = 0;           // max. logit rows of a step
  std::int64_t max_logprobs = 20;  // max. alternatives per row
  // 32-bit words that the ends, bias and bad words of one sequence may take together (two per bias,
  // the length plus one per bad word). Allowed ids are not limited.
  static constexpr std::int64_t kListWords = 4096;
};

// The number of words that these rules' lists take.
std::int64_t list_words(const SamplingRules& rules);

// One step's rows of logits. Device memory unless said otherwise.
struct SampleStep {
  TensorView logits;  // [rows, this rank's part], float32, any row stride; may be overwritten
  const LogitsCall* head = nullptr;  // computes the logits; nullptr: they are ready
  TensorView slots;      // [rows], int32: the sequence that each row samples for; negative: none
  TensorView positions;  // [rows], int32: position of the sampled token, or of the target
  // [rows], int32: token whose log-probability is reported instead of the sampled token's (prompt
  // logprobs), or -1; rows with a target have no slot
  TensorView targets;
  TensorView history;  // [blocks, block_size], int32: tokens, by blocks
  // [rows, blocks], int32, any row stride: the blocks of each row's sequence; not read for rows
  // without a slot.
  TensorView block_table;
  // Host values that summarize the rows' rules, so that no kernel is launched needlessly.
  bool penalties = false;      // some row's rules change logits
  bool top_k_top_p = false;    // some row's rules truncate
  std::int32_t logprobs = -1;  // the most alternatives any row reports; -1: no logprobs at all

  std::int64_t rows() const { return logits.shape[0]; }
};

// The results in device memory, valid until the next step. Row r belongs to row r of SampleStep.
struct Sampled {
  // [rows], int32: the sampled token or the target; -1: neither, or all logits are NaN.
  TensorView tokens;
  // These are computed from the raw logits. They are set only where the step has logprobs, and only
  // in rows whose rules have logprobs or that have a target.
  TensorView logprob;  // [rows], float32: of that token
  TensorView rank;     // [rows], int32: tokens with a higher logit, plus 1
  TensorView top_ids;  // [rows, logprobs], int32: the most likely first, of equals the lower id
  TensorView top_logprobs;  // [rows, logprobs], float32
};

// Not thread-safe.
class Sampler {
 public:
  // own: this rank's part of the vocabulary; stride: the widest part of any rank.
  Sampler(Range own, std::int64_t stride, std::int64_t vocabulary, Shard shard,
          const SamplerLimits& limits, Backend& backend);

  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Device memory of a sampler. (Ledger: "sampler".)
  static std::size_t bytes(std::int64_t stride, Shard shard, const SamplerLimits& limits);

  // Sets the rules of a slot from the next enqueued step on. Does not wait for the device. Must not
  // be captured.
  void set(std::int64_t slot, const SamplingRules& rules, Stream& stream);

  // Enqueues a step, a collective call of all ranks. last_tokens: [slots], int32, receives each
  // sampled token at its slot. Neither allocates nor synchronizes; no rows are allowed. May be
  // captured in a graph, which then uses the rules that are set when it runs.
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
  std::vector<std::uint32_t> words_;  // scratch of set()
};

}  // namespace nvllm::layers
