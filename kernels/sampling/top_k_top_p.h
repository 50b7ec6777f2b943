// Truncation by min_p, top_k and top_p: computes a threshold per row, below which no logit is
// sampled.
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
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

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

// Each enqueues its step and throws an Error for arguments that do not fit.
void top_k_top_p(const TopKTopP& args, Stream& stream);
void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void check_top_k_top_p(const TopKTopP& args);

}  // namespace nvllm::kernels
