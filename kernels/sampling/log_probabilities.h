// Log-probabilities of tokens, and of the most likely ones, from logits that may be split by
// vocabulary. Each part summarizes its logits in a record per row. The records of all parts
// determine everything except the rank, for which each part counts its logits that are higher than
// the token's.
//
//   summarize_logits(args);   all parts' records -> args.all_records
//   log_probabilities(args);  all parts' higher -> args.all_higher
//   rank_tokens(args);        only if there are several parts
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxAlternatives = 1024;

// The 32-bit words of a row's record: the highest logit, the sum of e^(logit - highest), the
// token's logit (NaN if it belongs to another part), then `alternatives` ids and as many logits, in
// descending order; an id of -1 ends the list.
constexpr std::int64_t logprob_record_words(std::int64_t alternatives) {
  return 3 + 2 * alternatives;
}

// Rows with a token (not negative) are computed if they have no slot, or if the slot's parameters
// request logprobs; nothing is written for others. Logits are the raw ones: rows.changed_logits is
// not read. NaN counts as -infinity. If the highest logit is infinite, all equal logits share the
// probability, so no result is ever NaN.
struct LogProbabilities {
  SamplingRows rows;
  TensorView tokens;       // [rows], int32
  TensorView records;      // [rows, logprob_record_words(alternatives)], int32: of this part
  TensorView all_records;  // [parts, rows, words], int32; one part: may be `records`
  TensorView higher;       // [rows], int32: logits of this part above the token's
  TensorView all_higher;   // [parts, rows], int32; one part: may be `higher`
  // Results.
  TensorView logprob;       // [rows], float32
  TensorView rank;          // [rows], int32: 1 is the most likely
  TensorView top_ids;       // [rows, alternatives], int32: ties by ascending id; -1: end
  TensorView top_logprobs;  // [rows, alternatives], float32

  std::int64_t alternatives() const { return top_ids.shape[1]; }
  std::int64_t parts() const { return all_records.shape[0]; }
};

// Each enqueues its step and throws an Error for arguments that do not fit. With one part
// log_probabilities() also computes the rank.
void summarize_logits(const LogProbabilities& args, Stream& stream);
void log_probabilities(const LogProbabilities& args, Stream& stream);
void rank_tokens(const LogProbabilities& args, Stream& stream);
void check_log_probabilities(const LogProbabilities& args);

}  // namespace nvllm::kernels
