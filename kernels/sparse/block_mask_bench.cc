// Measures the block mask of XAttention for whole prompts, segment by segment as the policy
// computes it, with 32 query heads and 8 KV heads. TFLOP_per_s counts the GEMM of strided rows with
// the strided tokens that they see.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/pointwise/random_fill.h"
#include "kernels/sparse/block_mask.h"
#include "kernels/testing/bench.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  std::int64_t tokens, segment;  // rows of a call
  std::int64_t block_size;       // 0: contiguous
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128;
};

// The queries and keys of a prompt, and the tensors that the mask of a segment needs.
class Work {
 public:
  Work(Backend& backend, Stream& stream, const Shape& shape)
      : backend_(backend), stream_(stream), shape_(shape) {
    const std::int64_t block_size = shape.block_size > 0 ? shape.block_size : shape.tokens;
    const std::int64_t blocks = shape.tokens / block_size;
    q_ = random({shape.tokens, shape.heads, shape.head_dim});
    kv_.keys = kv_.values = random({blocks, block_size, shape.kv_heads, shape.head_dim});
    if (shape.block_size > 0) kv_.block_table = shuffled(blocks);
    const std::int64_t tiles = shape.tokens / kMaskTile, row_tiles = shape.segment / kMaskTile;
    counts_ = make(DType::i32, {row_tiles, shape.heads});
    tiles_ = make(DType::i32, {row_tiles, shape.heads, tiles});
    gathered_ = make(DType::bf16, {shape.tokens, shape.kv_heads, shape.head_dim});
    workspace_ = make(DType::u8, {static_cast<std::int64_t>(block_mask_workspace(
                                     shape.segment, shape.heads, shape.tokens))});
  }

  void choose() const {
    for (std::int64_t first = 0; first < shape_.tokens; first += shape_.segment) {
      BlockMask args;
      args.prompt.q = q_.rows(first, shape_.segment);
      args.prompt.kv = kv_;
      args.prompt.first_position = first;
      args.prompt.group = shape_.heads / shape_.kv_heads;
      args.prompt.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
      args.tiles = tiles_;
      args.tile_counts = counts_;
      args.workspace = workspace_;
      args.gathered = gathered_;
      args.gathered_tokens = first;
      args.threshold = 0.95f;
      block_mask(args, stream_);
    }
  }

  double flops() const {
    const std::int64_t strided = shape_.tokens / kStride;
    const auto strides = static_cast<double>(strided);
    const auto depth = static_cast<double>(kStride * shape_.head_dim);
    return static_cast<double>(shape_.heads) * strides * (strides + 1) * depth;
  }

 private:
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    buffers_.push_back(backend_.allocate(MemoryKind::device, view.bytes(), "benchmark"));
    view.data = buffers_.back().data();
    return view;
  }
  // Zeros would be multiplied at higher clocks.
  TensorView random(std::initializer_list<std::int64_t> shape) {
    const TensorView view = make(DType::bf16, shape);
    RandomFill fill;
    fill.out = TensorView(view.data, DType::bf16, {1, view.elements()});
    fill.whole_columns = view.elements();
    fill.seed = buffers_.size();
    random_fill(fill, stream_);
    return view;
  }
  TensorView shuffled(std::int64_t blocks) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    const TensorView view = make(DType::i32, {1, blocks});
    const Buffer pinned = backend_.allocate(MemoryKind::pinned, view.bytes(), "benchmark");
    std::copy(order.begin(), order.end(), static_cast<std::int32_t*>(pinned.data()));
    backend_.copy(view.data, pinned.data(), view.bytes(), stream_);
    stream_.synchronize();
    return view;
  }

  Backend& backend_;
  Stream& stream_;
  Shape shape_;
  std::vector<Buffer> buffers_;
  TensorView q_, counts_, tiles_, workspace_, gathered_;
  KvView kv_;
};

void measure(benchmark::State& state, DeviceKind kind, const Shape& shape) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const Work work(*backend, *stream, shape);
  const auto graph = backend->capture(*stream, [&] { work.choose(); });
  const double seconds = testing::seconds_of(*graph, *stream);
  for (auto _ : state) {
    graph->launch(*stream);
    stream->synchronize();
  }
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["TFLOP_per_s"] = work.flops() / seconds * 1e-12;
}

// Registers all cases when the program starts.
const bool registered = [] {
  const auto add = [](DeviceKind kind, const Shape& shape) {
    const std::string name = std::string("block_mask/") + name_of(kind) + "/bfloat16/" +
                             std::to_string(shape.tokens) +
                             (shape.block_size > 0 ? "/blocks" : "/contiguous");
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      measure(state, kind, shape);
    })->UseRealTime();
  };
  add(DeviceKind::cpu,
      {.tokens = 2048, .segment = 2048, .block_size = 16, .heads = 4, .kv_heads = 1});
  constexpr std::int64_t kTokens = 131072,
                         kSegment = 8192;  // the policy's segment for this many tokens
  for (const std::int64_t tokens : {kTokens / 4, kTokens / 2, kTokens}) {
    const std::int64_t segment = kSegment * kTokens / tokens;
    for (const std::int64_t block_size : {16, 0}) {
      add(DeviceKind::cuda, {.tokens = tokens, .segment = segment, .block_size = block_size});
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
