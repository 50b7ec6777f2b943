#include "kernels/sampling/top_k_top_p.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/check.h"
#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {
namespace {

// The threshold of whole rows, from their keys in falling order without NaN.
std::uint32_t threshold_of(const std::vector<std::uint32_t>& keys, const SlotParams& params) {
  const TruncationState row = initial_state(keys.empty() ? 0 : keys.front(), params);
  if (row.active == 0) return row.threshold;
  std::size_t kept = 0;
  while (kept < keys.size() && keys[kept] >= row.threshold) ++kept;
  const auto with_equals = [&](std::size_t count) {
    while (count < kept && keys[count] == keys[count - 1]) ++count;
    return count;
  };
  std::uint32_t threshold = row.threshold;
  const auto k = static_cast<std::size_t>(params.top_k);
  if (params.top_k > 0 && k <= kept) {
    kept = with_equals(k);
    threshold = keys[kept - 1];
  }
  if (params.top_p == 0) return threshold;
  const auto mass = [&](std::size_t i) {
    return mass_of(distance(value_of_key(keys[i]), row.maximum, params));
  };
  std::uint64_t total = 0, sum = 0;
  for (std::size_t i = 0; i < kept; ++i) total += mass(i);
  const std::uint64_t wanted = wanted_of(total, params, TruncationKind::top_p);
  for (std::size_t i = 0; i < kept; ++i) {
    sum += mass(i);
    if (sum >= wanted) return keys[i];
  }
  return threshold;
}

}  // namespace

void check_top_k_top_p(const TopKTopP& args) {
  constexpr Arguments check("top_k_top_p");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t rows = args.rows.rows(), parts = args.all_maxima.shape[0];
  check.require_dense(args.maxima, "maxima", DType::i32, {rows});
  check.require_dense(args.all_maxima, "all_maxima", DType::i32, {parts, rows});
  check.require_dense(args.histograms, "histograms", DType::i64, {rows, kTruncationBins});
  check.require_dense(args.all_histograms, "all_histograms", DType::i64,
                      {parts, rows, kTruncationBins});
  check.require_dense(args.state, "state", DType::u8,
                      {rows, static_cast<std::int64_t>(sizeof(TruncationState))});
  check.require_dense(args.thresholds, "thresholds", DType::f32, {rows});
}

void top_k_top_p(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  NVLLM_CHECK(args.all_maxima.shape[0] == 1, "top_k_top_p: ", args.all_maxima.shape[0], " parts");
  if (args.rows.rows() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda && cuda::top_k_top_p_sm90(args, stream)) return;
#endif
  find_maximum(args, stream);
  for (const auto kind : {TruncationKind::top_k, TruncationKind::top_p}) {
    for (int round = 0; round < kTruncationRounds; ++round)
      count_truncation_round(args, kind, round, stream);
  }
}

void find_maximum(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, find_maximum(args, stream));
}

void begin_truncation(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, begin_truncation(args, stream));
}

void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, count_truncation_round(args, kind, round, stream));
}

void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, choose_truncation_round(args, kind, round, stream));
}

void top_k_top_p_reference(const TopKTopP& args) {
  check_top_k_top_p(args);
  const SamplingRowsView rows(args.rows);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    std::uint32_t threshold = kLowestKey;
    if (rows.slots[row] >= 0) {
      const SlotParams& params = rows.params[rows.slots[row]];
      const float* logits = rows.sampled_logits(row, params.flags);
      std::vector<std::uint32_t> keys;
      for (std::int64_t i = 0; i < rows.own; ++i) {
        if (logits[i] == logits[i]) keys.push_back(order_key(logits[i]));
      }
      std::sort(keys.begin(), keys.end(), std::greater<>());
      threshold = threshold_of(keys, params);
    }
    args.thresholds.as<float>()[row] = value_of_key(threshold);
  }
}

}  // namespace nvllm::kernels
