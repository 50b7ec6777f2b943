// All of filtering, in bytes of logits per second, as if they were read once.
#include <cmath>

#include "kernels/sampling/testing/sampling_bench.h"
#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary, SlotParams params) {
  params.inverse_temperature = 1 / 0.6f;
  params.flags = SlotParams::kTruncates;
  const testing::SamplingBench there(bench, rows, vocabulary, params);
  TopKTopP args;
  args.rows = there.rows;
  args.maxima = bench.tensor(DType::i32, {rows});
  args.all_maxima = TensorView(args.maxima.data, DType::i32, {1, rows});
  args.histograms = bench.tensor(DType::i64, {rows, kTruncationBins});
  args.all_histograms = TensorView(args.histograms.data, DType::i64, {1, rows, kTruncationBins});
  args.state = bench.tensor(DType::u8, {rows, sizeof(TruncationState)});
  args.thresholds = bench.tensor(DType::f32, {rows});
  bench.run(there.bytes(), [&] { top_k_top_p(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  SlotParams top_k, top_p, min_p;
  top_k.top_k = 20;
  top_p.top_p = static_cast<std::uint32_t>(0.95 * 0x1p32);
  min_p.has_min_p = 1;
  min_p.log_min_p = std::log(0.05f);
  SlotParams all = top_k;
  all.top_p = top_p.top_p;
  const struct {
    const char* what;
    SlotParams params;
  } kCases[] = {{"top_k", top_k}, {"top_p", top_p}, {"min_p", min_p}, {"top_k+top_p", all}};
  for (const auto& one : kCases) {
    testing::register_sampling(
        "top_k_top_p", one.what,
        [params = one.params](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
          measure(bench, rows, own, params);
        });
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
