// Measures the page selection of Quest in bytes per second; bounds are read once.
#include <numeric>

#include "kernels/pointwise/random_fill.h"
#include "kernels/sparse/page_selection.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlock = 16, kBudget = 128;

void measure(GraphBenchmark& bench, std::int64_t tokens, DType dtype) {
  const std::int64_t blocks = tokens / kBlock;
  PageSelection args;
  args.q = bench.tensor(dtype, {1, kHeads, kHeadDim});
  args.bounds = bench.tensor(dtype, {blocks, kKvHeads, 2, kHeadDim});
  random_fill({.out = TensorView(args.q.data, dtype, {kHeads, kHeadDim}),
               .seed = 1,
               .whole_columns = kHeadDim,
               .width = 1},
              bench.stream());
  random_fill({.out = TensorView(args.bounds.data, dtype, {blocks * kKvHeads * 2, kHeadDim}),
               .seed = 2,
               .whole_columns = kHeadDim,
               .width = 1},
              bench.stream());
  std::vector<std::int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  args.block_table = bench.tensor(table);
  args.block_table = TensorView(args.block_table.data, DType::i32, {1, blocks});
  args.kv_length = bench.tensor(std::vector<std::int32_t>{static_cast<std::int32_t>(tokens)});
  args.block_size = args.page_tokens = kBlock;
  args.budget = kBudget;
  args.group = kHeads / kKvHeads;
  args.max_kv_length = tokens;
  args.pages = bench.tensor(DType::i32, {1, kKvHeads, kBudget});
  args.page_counts = bench.tensor(DType::i32, {1, kKvHeads});
  args.workspace = bench.tensor(
      DType::u8,
      {static_cast<std::int64_t>(page_selection_workspace(1, kKvHeads, tokens, kBlock))});
  bench.run(args.bounds.bytes(), [&] { page_selection(args, bench.stream()); });
}

const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t tokens : {40960, 131072}) {
      const DType dtype = kind == DeviceKind::cuda ? DType::bf16 : DType::f32;
      testing::register_benchmark("page_selection", kind, dtype,
                                  std::to_string(tokens) + "/budget2048",
                                  [=](GraphBenchmark& bench) { measure(bench, tokens, dtype); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
