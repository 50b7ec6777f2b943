// Measures attention to selected pages in bytes of keys and values per second.
#include <algorithm>

#include "kernels/sparse/sparse_attention.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

struct Shape {
  std::int64_t sequences, tokens, kept;  // of each sequence
};

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPage = 64;

// Kept pages are spread evenly over the sequence.
void measure(GraphBenchmark& bench, const Shape& shape) {
  const std::int64_t pages = shape.tokens / kPage, kept = shape.kept / kPage;
  PageAttention args;
  args.q = bench.tensor(DType::bf16, {shape.sequences, kHeads, kHeadDim});
  args.out = bench.tensor(DType::bf16, {shape.sequences, kHeads, kHeadDim});
  args.kv.keys = bench.tensor(DType::bf16, {shape.sequences, shape.tokens, kKvHeads, kHeadDim});
  args.kv.values = bench.tensor(DType::bf16, {shape.sequences, shape.tokens, kKvHeads, kHeadDim});
  args.kv_length = bench.tensor(
      std::vector<std::int32_t>(shape.sequences, static_cast<std::int32_t>(shape.tokens)));
  args.group = kHeads / kKvHeads;
  args.scale = 0.1f;
  args.page_tokens = kPage;
  std::vector<std::int32_t> list;
  for (std::int64_t i = 0; i < shape.sequences * kKvHeads * kept; ++i) {
    list.push_back(static_cast<std::int32_t>(i % kept * pages / kept));
  }
  args.pages = bench.tensor(list);
  args.pages = TensorView(args.pages.data, DType::i32, {shape.sequences, kKvHeads, kept});
  args.page_counts = bench.tensor(
      std::vector<std::int32_t>(shape.sequences * kKvHeads, static_cast<std::int32_t>(kept)));
  args.page_counts = TensorView(args.page_counts.data, DType::i32, {shape.sequences, kKvHeads});
  const std::int64_t bytes = shape.sequences * shape.kept * kKvHeads * kHeadDim * 4;
  bench.run(bytes, [&] { page_attention(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const Shape& shape : {Shape{1, 8192, 2048}, {1, 32768, 2048}, {8, 8192, 2048}}) {
      if (kind == DeviceKind::cpu && shape.sequences * shape.tokens > 8192) continue;
      const std::string what = std::to_string(shape.sequences) + "x" + std::to_string(shape.kept) +
                               "of" + std::to_string(shape.tokens);
      testing::register_benchmark("page_attention", kind, DType::bf16, what,
                                  [=](GraphBenchmark& bench) { measure(bench, shape); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
