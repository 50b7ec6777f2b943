// Which tokens min_p, top_k and top_p leave: of each row one threshold, below which no logit is drawn.
//
// Where rows are whole, top_k_top_p(filter) is all. Rows may also be parts of the vocabulary. What the parts have to
// know of each other is a maximum, then a histogram per round; histograms are of integers, so neither the parts nor
// the order of sums matters:
//
//   find_maximum(filter);                   all parts' maxima -> filter.all_maxima
//   begin_truncation(filter);
//   for kind in (top_k, top_p), for round in 0, 1, 2:
//     count_truncation_round(filter, kind, round);     all parts' histograms -> filter.all_histograms
//     choose_truncation_round(filter, kind, round);
//
// Of one part find_maximum() and count_truncation_round() do what begin_truncation() and choose_truncation_round() would, which are then not
// to be called.
//
// top_k: by how many logits, top_p: by what mass (e^((logit - maximum) / temperature), in fixed point) lies
// in each interval of order keys; a round looks into the interval that the boundary fell in, and the last
// one knows the boundary's key. Equals of the boundary are kept. Rows whose rules filter nothing, and
// greedy ones, cost nothing but the launches.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/sampling/sampling_rules.h"

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

// What is known of a row between rounds.
struct TruncationState {
  std::uint64_t wanted = 0;  // how much of the interval has to be kept; 0: this kind keeps all
  float maximum = 0;
  std::uint32_t threshold = 0;  // order key
  std::uint32_t prefix = 0;     // of the boundary's key: what the rounds so far found
  std::uint32_t active = 0;
  std::uint32_t blocks_done = 0;  // of the kernel that is at it; 0 between kernels
};

struct TopKTopP {
  SamplingRows rows;
  // Zero before the first call and left so: maxima, histograms, state.
  TensorView maxima;          // [rows], int32: of this part, order keys
  TensorView all_maxima;      // [parts, rows], int32; one part: may be `maxima`
  TensorView histograms;      // [rows, kTruncationBins], int64
  TensorView all_histograms;  // [parts, rows, kTruncationBins], int64; one part: may be `histograms`
  TensorView state;           // [rows, sizeof(TruncationState)], uint8
  TensorView thresholds;      // [rows], float32
};

// Enqueue; an Error for arguments that do not fit.
void top_k_top_p(const TopKTopP& args, Stream& stream);
void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void check_top_k_top_p(const TopKTopP& args);

// The plain definition for whole rows, by sorting them: sets `thresholds` alone.
void top_k_top_p_reference(const TopKTopP& args);

}  // namespace nvllm::kernels
