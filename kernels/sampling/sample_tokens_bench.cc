// Drawing tokens, in bytes of logits read per second.
#include "kernels/sampling/sample_tokens.h"
#include "kernels/sampling/testing/sampling_bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
             float inverse_temperature) {
  SlotParams params;
  params.inverse_temperature = inverse_temperature;
  const testing::SamplingBench there(bench, rows, vocabulary, params);
  SampleTokens args;
  args.rows = there.rows;
  args.scratch = bench.tensor(DType::i64, {sample_scratch_words(rows)});
  args.tokens = bench.tensor(DType::i32, {rows});
  args.last_tokens = bench.tensor(DType::i32, {rows});
  bench.run(there.bytes(), [&] { sample_tokens(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const float inverse_temperature : {0.0f, 1 / 0.6f}) {
    testing::register_sampling("sample_tokens", inverse_temperature == 0 ? "greedy" : "temperature",
                               [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                                 measure(bench, rows, own, inverse_temperature);
                               });
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
