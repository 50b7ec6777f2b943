// From logits to tokens and log-probabilities. First come the inputs that all operations share, a
// slot's parameters and a step's rows of logits; then the operations in the order of a step:
// apply_penalties(), top_k_top_p(), sample_tokens(), and log_probabilities() of the results.
//
// All operations and checks throw an Error that names the argument that does not fit.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// A slot's sampling parameters in device memory.
struct SlotParams {
  static constexpr std::uint32_t kChangesLogits = 1;  // apply_penalties() has something to do
  static constexpr std::uint32_t kTruncates = 2;      // min_p, top_k or top_p
  static constexpr std::uint32_t kAllowed = 4;        // only some ids are allowed
  static constexpr std::uint32_t kPenalties = 8;      // repetition, presence or frequency penalty

  std::uint64_t seed = 0;
  float inverse_temperature = 1;  // 0: greedy
  float log_min_p = 0;            // natural logarithm; only read if has_min_p
  std::uint32_t has_min_p = 0;
  std::int32_t top_k = 0;   // 0: off
  std::uint32_t top_p = 0;  // in units of 2^-32; 0: off
  std::uint32_t flags = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::int32_t prompt_length = 0;
  std::int32_t min_length = 0;  // while the sequence is shorter, its end tokens are banned
  std::int32_t logprobs = -1;   // -1: not requested

  // The lengths of the slot's lists, which are contiguous:
  std::int32_t ends = 0;        // ids of end tokens
  std::int32_t biases = 0;      // ids, then as many floats
  std::int32_t bad_words = 0;   // the end of each, relative to the first token of the first; then
  std::int32_t bad_tokens = 0;  // the tokens of all of them

  std::int32_t list_words() const { return ends + 2 * biases + bad_words + bad_tokens; }
};
static_assert(sizeof(SlotParams) == 72);

// A step's rows for sampling kernels.
struct SamplingRows {
  TensorView logits;          // [rows, this rank's part of the vocabulary], float32, any row stride
  TensorView slots;           // [rows], int32; negative: no token is sampled
  TensorView positions;       // [rows], int32
  TensorView params;          // [slots, sizeof(SlotParams)], uint8
  std::int64_t first_id = 0;  // of this rank's part
  // Where apply_penalties() writes the rows that it changes, if not in place: [rows, this rank's
  // part], any row stride.
  TensorView changed_logits{};

  std::int64_t rows() const { return logits.shape[0]; }
  std::int64_t own() const { return logits.shape[1]; }
};

// --- penalties, bias and banned tokens

// Changes the rows whose slot has kChangesLogits, in this order:
//   -infinity for ids that are not allowed, for end tokens while the sequence is shorter than
//   min_length, and for the last token of a bad word whose other tokens end the history
//   + bias
//   repetition penalty: positive logits of tokens in the history are divided by it, others
//   multiplied
//   - frequency_penalty * count of the token in the output, - presence_penalty if it occurs there
// The history of a row is the tokens before its position; the output is the history after the
// prompt.
struct ApplyPenalties {
  // with changed_logits: receives the changed rows; otherwise they change in place
  SamplingRows rows;
  TensorView lists;        // [slots, words], int32: the lists of SlotParams
  TensorView allowed;      // [slots, words], int32: one bit per id of this rank's part
  TensorView history;      // [blocks, block_size], int32
  TensorView block_table;  // [rows, blocks], int32, any row stride
};

// Ids outside this rank's part of the vocabulary are ignored.
void apply_penalties(const ApplyPenalties& args, Stream& stream);
void check_apply_penalties(const ApplyPenalties& args);

// --- truncation by min_p, top_k and top_p

// Truncation computes a threshold per row, below which no logit is sampled.
//
// If rows are whole, top_k_top_p(args) does everything. Rows may also be parts of the vocabulary,
// which exchange a maximum, then one histogram per round. Histograms are of integers, so the result
// does not depend on the parts or the order of sums:
//
//   find_maximum(args);                             all parts' maxima -> args.all_maxima
//   begin_truncation(args);
//   for kind in (top_k, top_p), for round in 0, 1, 2:
//     count_truncation_round(args, kind, round);    all parts' histograms -> args.all_histograms
//     choose_truncation_round(args, kind, round);
//
// With one part, find_maximum() and count_truncation_round() include begin_truncation() and
// choose_truncation_round(), which must then not be called.
//
// A histogram has the number of logits (top_k) or the mass (top_p: e^((logit - maximum) /
// temperature), in fixed point) per interval of order keys. Each round subdivides the interval that
// contains the boundary, and the last one finds the boundary's key. Logits equal to the boundary
// are kept. Rows without truncation, and greedy ones, cost nothing but the launches.

enum class TruncationKind : std::uint8_t { top_k, top_p };
inline constexpr int kTruncationRounds = 3;
inline constexpr std::int64_t kTruncationBins = 2048;

// A round's part of the order key: 11, 11 and 10 bits.
constexpr int truncation_shift(int round) {
  return round == 0 ? 21 : round == 1 ? 10 : 0;
}
constexpr std::uint32_t truncation_mask(int round) {
  return round == 2 ? 0x3ff : 0x7ff;
}

// A row's state between rounds.
struct TruncationState {
  std::uint64_t wanted = 0;  // how much of the interval must be kept; 0: this kind keeps all
  float maximum = 0;
  std::uint32_t threshold = 0;  // order key
  std::uint32_t prefix = 0;     // of the boundary's key: the result of the rounds so far
  std::uint32_t active = 0;
  std::uint32_t blocks_done = 0;  // of the running kernel; 0 between kernels
};

struct TopKTopP {
  SamplingRows rows;
  // Zero before the first call and after each call: maxima, histograms, state.
  TensorView maxima;      // [rows], int32: of this part, order keys
  TensorView all_maxima;  // [parts, rows], int32; one part: may be `maxima`
  TensorView histograms;  // [rows, kTruncationBins], int64
  TensorView
      all_histograms;     // [parts, rows, kTruncationBins], int64; one part: may be `histograms`
  TensorView state;       // [rows, sizeof(TruncationState)], uint8
  TensorView thresholds;  // [rows], float32
};

// Each enqueues its step.
void top_k_top_p(const TopKTopP& args, Stream& stream);
void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void check_top_k_top_p(const TopKTopP& args);

// --- sampled tokens

// Sampling returns the token of each row with the highest logit or, with a temperature, with the
// highest logit / temperature + Gumbel noise, which is a sample from softmax(logit / temperature).

// The token of a row whose logits are all NaN.
inline constexpr std::int32_t kNoToken = -1;

// Rows without a slot sample no token: their token is their target.
struct SampleTokens {
  SamplingRows rows;
  // [rows], float32: with a temperature, lower logits are excluded; data == nullptr: none are.
  TensorView thresholds{};
  TensorView targets;  // [rows], int32, or data == nullptr: -1 everywhere
  // [sample_scratch_words(rows)], int64, zero before the first call and after each call.
  TensorView scratch;

  // If rows are whole, the results are tokens.
  TensorView tokens{};       // [rows], int32
  TensorView last_tokens{};  // [slots], int32: receives each sampled token at its slot
  // If rows are parts of the vocabulary, the result is each part's best candidate, the input of
  // reduce_samples(). data == nullptr: rows are whole.
  TensorView best{};  // [rows], int64 (bits of candidate())
};

// The words of scratch for `rows` rows.
constexpr std::int64_t sample_scratch_words(std::int64_t rows) {
  return 2 * rows;
}

// Ties go to the lowest id. NaN never wins; a row with only NaN yields kNoToken, and its slot token
// 0, which a step that is already enqueued may read.
void sample_tokens(const SampleTokens& args, Stream& stream);
void check_sample_tokens(const SampleTokens& args);

// Computes the tokens from the best candidates of all parts of the vocabulary.
struct ReduceSamples {
  TensorView bests;        // [parts, rows], int64
  TensorView slots;        // [rows], int32
  TensorView targets;      // [rows], int32, or data == nullptr
  TensorView tokens;       // [rows], int32
  TensorView last_tokens;  // [slots], int32
};
void reduce_samples(const ReduceSamples& args, Stream& stream);
void check_reduce_samples(const ReduceSamples& args);

// --- log-probabilities

// Log-probabilities of tokens, and of the most likely ones, from logits that may be split by
// vocabulary. Each part summarizes its logits in a record per row. The records of all parts
// determine everything except the rank, for which each part counts its logits that are higher than
// the token's.
//
//   summarize_logits(args);   all parts' records -> args.all_records
//   log_probabilities(args);  all parts' higher -> args.all_higher
//   rank_tokens(args);        only if there are several parts

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

// Each enqueues its step. With one part log_probabilities() also computes the rank.
void summarize_logits(const LogProbabilities& args, Stream& stream);
void log_probabilities(const LogProbabilities& args, Stream& stream);
void rank_tokens(const LogProbabilities& args, Stream& stream);
void check_log_probabilities(const LogProbabilities& args);

}  // namespace nvllm::kernels
