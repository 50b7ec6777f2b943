// Scoring, in bytes of logits per second, as if they were read once.
#include "kernels/sampling/log_probabilities.h"
#include "kernels/sampling/testing/sampling_bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
             std::int64_t alternatives) {
  SlotParams params;
  params.logprobs = static_cast<std::int32_t>(alternatives);
  const testing::SamplingBench there(bench, rows, vocabulary, params);
  const std::int64_t words = logprob_record_words(alternatives);
  LogProbabilities args;
  args.rows = there.rows;
  args.tokens = bench.tensor(DType::i32, {rows});
  args.records = bench.tensor(DType::i32, {rows, words});
  args.all_records = TensorView(args.records.data, DType::i32, {1, rows, words});
  args.higher = bench.tensor(DType::i32, {rows});
  args.all_higher = TensorView(args.higher.data, DType::i32, {1, rows});
  args.logprob = bench.tensor(DType::f32, {rows});
  args.rank = bench.tensor(DType::i32, {rows});
  args.top_ids = bench.tensor(DType::i32, {rows, alternatives});
  args.top_logprobs = bench.tensor(DType::f32, {rows, alternatives});
  bench.run(there.bytes(), [&] {
    summarize_logits(args, bench.stream());
    log_probabilities(args, bench.stream());
  });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const std::int64_t alternatives : {0, 20}) {
    testing::register_sampling("log_probabilities", std::to_string(alternatives) + "_alternatives",
                               [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                                 measure(bench, rows, own, alternatives);
                               });
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
