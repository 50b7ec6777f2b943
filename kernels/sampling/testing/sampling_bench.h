// SamplingBench: rows of random logits, a slot each, for benchmarks of what sampling is made of.
#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/pointwise/random_fill.h"
#include "kernels/sampling/sampling_rules.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels::testing {

struct SamplingBench {
  SamplingRows rows;

  SamplingBench(GraphBenchmark& bench, std::int64_t count, std::int64_t vocabulary,
                SlotParams params) {
    rows.logits = bench.tensor(DType::f32, {count, vocabulary});
    random_fill({.out = rows.logits, .seed = 1, .whole_columns = vocabulary, .width = 10},
                bench.stream());
    std::vector<std::int32_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0);
    rows.slots = bench.tensor(slots);
    rows.positions = bench.tensor(std::vector<std::int32_t>(count, 1000));
    std::vector<std::int32_t> words;
    for (std::int64_t row = 0; row < count; ++row) {
      std::int32_t slot[sizeof(SlotParams) / sizeof(std::int32_t)];
      params.seed = static_cast<std::uint64_t>(row);
      std::memcpy(slot, &params, sizeof(params));
      words.insert(words.end(), std::begin(slot), std::end(slot));
    }
    rows.params = bench.tensor(words);
    rows.params = TensorView(rows.params.data, DType::u8, {count, sizeof(SlotParams)});
  }

  // What has to be read at least.
  std::size_t bytes() const { return rows.logits.bytes(); }
};

// Registers "operation/backend/float32/ROWSxVOCABULARY/what" for the shapes of a step: on the GPU a large
// vocabulary, on the CPU a small one.
template <typename Measure>
void register_sampling(const std::string& operation, const std::string& what,
                       const Measure& measure) {
  for (const DeviceKind kind : kBackends) {
    const std::int64_t vocabulary = kind == DeviceKind::cuda ? 151936 : 49152;
    for (const std::int64_t rows : {1, 16, 64, 256}) {
      register_benchmark(operation, kind, DType::f32,
                         std::to_string(rows) + "x" + std::to_string(vocabulary) + "/" + what,
                         [=](GraphBenchmark& bench) { measure(bench, rows, vocabulary); });
    }
  }
}

}  // namespace nvllm::kernels::testing
