#include "kernels/sampling/top_k_top_p.h"

#include "base/check.h"
#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {

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

}  // namespace nvllm::kernels
