// Measures sparse attention of a whole prompt beside attention to all tokens, in the same run. A
// row block keeps the first tile, a band before it, and others spread evenly: as tiles; or as
// ranges of a tile each and, for a fifth of the tokens, single columns. "density" is the share of
// the causal tokens that is kept, "over_dense" how many times faster than dense attention it is;
// TFLOP_per_s counts the kept tokens only.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/pointwise/random_fill.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/testing/bench.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 128;
constexpr std::int64_t kBand = 4;  // tiles

struct Shape {
  std::int64_t tokens;
  std::int64_t one_in;  // of the tokens is kept
  bool tiles;
  bool e4m3 = false;  // the cache
};

// Tensors of a backend, in memory that lives as long as they do.
class Tensors {
 public:
  Tensors(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // A tensor of normal-looking numbers: zeros would be multiplied at higher clocks.
  TensorView random(std::initializer_list<std::int64_t> shape) {
    const TensorView view = make(DType::bf16, shape);
    RandomFill fill;
    fill.out = TensorView(view.data, DType::bf16, {1, view.elements()});
    fill.whole_columns = view.elements();
    random_fill(fill, stream_);
    return view;
  }
  // Keys or values.
  TensorView cache(const Shape& shape, std::initializer_list<std::int64_t> sizes) {
    if (!shape.e4m3) return random(sizes);
    TensorView view(nullptr, DType::u8, sizes);
    buffers_.push_back(testing::random_e4m3(backend_, stream_, view.elements()));
    view.data = buffers_.back().data();
    return view;
  }
  TensorView numbers(const std::vector<std::int32_t>& values,
                     std::initializer_list<std::int64_t> shape) {
    const TensorView view = make(DType::i32, shape);
    const Buffer pinned = backend_.allocate(MemoryKind::pinned, view.bytes(), "benchmark");
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(pinned.data()));
    backend_.copy(view.data, pinned.data(), view.bytes(), stream_);
    stream_.synchronize();
    return view;
  }

 private:
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    buffers_.push_back(backend_.allocate(MemoryKind::device, view.bytes(), "benchmark"));
    view.data = buffers_.back().data();
    return view;
  }

  Backend& backend_;
  Stream& stream_;
  std::vector<Buffer> buffers_;
};

struct Lists {
  std::int64_t capacity = 0;
  std::vector<std::int32_t> counts, entries;
};

// Row blocks of `rows` rows keep `keep(block)`, a list of entries of `width` numbers, for every
// head.
template <typename Keep>
Lists make_lists(const Shape& shape, std::int64_t rows, std::int64_t width, const Keep& keep) {
  Lists lists;
  const std::int64_t blocks = shape.tokens / rows;
  lists.capacity =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(keep(blocks - 1).size()) / width);
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::vector<std::int32_t> list = keep(block);
    const auto count = static_cast<std::int32_t>(list.size() / width);
    list.resize(lists.capacity * width);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      lists.counts.push_back(count);
      lists.entries.insert(lists.entries.end(), list.begin(), list.end());
    }
  }
  return lists;
}

// Tile 0, the band that ends with tile `last`, and every one_in-th tile between them.
std::vector<std::int32_t> kept_tiles(const Shape& shape, std::int64_t last) {
  std::vector<std::int32_t> tiles;
  for (std::int64_t tile = 0; tile <= last; ++tile) {
    if (tile == 0 || tile > last - kBand || tile % shape.one_in == 0) {
      tiles.push_back(static_cast<std::int32_t>(tile));
    }
  }
  return tiles;
}

class Work {
 public:
  Work(Backend& backend, Stream& stream, const Shape& shape) : tensors_(backend, stream) {
    sparse_.q = tensors_.random({shape.tokens, kHeads, kHeadDim});
    sparse_.out = tensors_.random({shape.tokens, kHeads, kHeadDim});
    sparse_.kv.keys = tensors_.cache(shape, {1, shape.tokens, kKvHeads, kHeadDim});
    sparse_.kv.values = tensors_.cache(shape, {1, shape.tokens, kKvHeads, kHeadDim});
    sparse_.group = kHeads / kKvHeads;
    sparse_.scale = 0.1f;
    shape.tiles ? add_tiles(shape) : add_ranges(shape);

    dense_ = sparse_.attention_args();
    const auto tokens = static_cast<std::int32_t>(shape.tokens);
    dense_.query_start = tensors_.numbers({0, tokens}, {2});
    dense_.kv_length = tensors_.numbers({tokens}, {1});
    dense_.max_query_rows = dense_.max_kv_length = tokens;
    flops_ = 4.0 * static_cast<double>(kept_ * kHeads * kHeadDim);
    density_ = static_cast<double>(kept_) / (static_cast<double>(tokens) * tokens / 2);
  }

  const SparseAttention& sparse() const { return sparse_; }
  const Attention& dense() const { return dense_; }
  double flops() const { return flops_; }
  double density() const { return density_; }

 private:
  void add_tiles(const Shape& shape) {
    const std::int64_t blocks = shape.tokens / 128;
    const Lists lists =
        make_lists(shape, 128, 1, [&](std::int64_t block) { return kept_tiles(shape, block); });
    sparse_.tile_counts = tensors_.numbers(lists.counts, {blocks, kHeads});
    sparse_.tiles = tensors_.numbers(lists.entries, {blocks, kHeads, lists.capacity});
    for (const std::int32_t count : lists.counts) kept_ += count * 128 * 128 / kHeads;
  }

  // Four of five kept tiles are ranges. In place of the fifth there are columns: every second token
  // of it and, if not all tiles are kept, of the tile after it.
  void add_ranges(const Shape& shape) {
    const std::int64_t blocks = shape.tokens / 128;
    const auto is_columns = [&](std::int64_t tile, std::int64_t last) {
      return tile != 0 && tile <= last - kBand && tile / shape.one_in % 5 == 4;
    };
    const Lists ranges = make_lists(shape, 128, 2, [&](std::int64_t block) {
      std::vector<std::int32_t> list;
      for (const std::int32_t tile : kept_tiles(shape, block)) {
        if (is_columns(tile, block)) continue;
        list.push_back(tile * 128);
        list.push_back(tile * 128 + 128);
      }
      return list;
    });
    const Lists columns = make_lists(shape, 128, 1, [&](std::int64_t block) {
      std::vector<std::int32_t> list;
      for (const std::int32_t tile : kept_tiles(shape, block)) {
        if (!is_columns(tile, block)) continue;
        for (int i = 0; i < 64; ++i) list.push_back(tile * 128 + 2 * i);
        for (int i = 0; i < 64 && shape.one_in > 1; ++i) list.push_back(tile * 128 + 128 + 2 * i);
      }
      return list;
    });
    sparse_.range_counts = tensors_.numbers(ranges.counts, {blocks, kHeads});
    sparse_.ranges = tensors_.numbers(ranges.entries, {blocks, kHeads, ranges.capacity, 2});
    sparse_.column_counts = tensors_.numbers(columns.counts, {blocks, kHeads});
    sparse_.columns = tensors_.numbers(columns.entries, {blocks, kHeads, columns.capacity});
    for (std::size_t i = 0; i < ranges.counts.size(); ++i) {
      kept_ += (ranges.counts[i] * 128 + columns.counts[i]) * 128 / kHeads;
    }
  }

  Tensors tensors_;
  SparseAttention sparse_;
  Attention dense_;
  std::int64_t kept_ = 0;  // pairs of a row and a token, of one head
  double flops_ = 0, density_ = 0;
};

void measure(benchmark::State& state, DeviceKind kind, const Shape& shape) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const Work work(*backend, *stream, shape);
  const auto dense = backend->capture(*stream, [&] { attention(work.dense(), *stream); });
  const auto sparse = backend->capture(*stream, [&] { sparse_attention(work.sparse(), *stream); });
  const double dense_seconds = testing::seconds_of(*dense, *stream);
  const double seconds = testing::seconds_of(*sparse, *stream);
  for (auto _ : state) {
    sparse->launch(*stream);
    stream->synchronize();
  }
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["TFLOP_per_s"] = work.flops() / seconds * 1e-12;
  state.counters["density"] = work.density();
  state.counters["over_dense"] = dense_seconds / seconds;
}

// Registers all cases when the program starts.
const bool registered = [] {
  const auto add = [](DeviceKind kind, const Shape& shape) {
    const std::string name = std::string("sparse_attention/") + name_of(kind) +
                             (shape.e4m3 ? "/bfloat16_to_e4m3/" : "/bfloat16/") +
                             (shape.tiles ? "tiles/" : "ranges/") + std::to_string(shape.tokens) +
                             "/1of" + std::to_string(shape.one_in);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      measure(state, kind, shape);
    })->UseRealTime();
  };
  for (const bool tiles : {true, false}) {
    for (const std::int64_t one_in : {1, 4}) add(DeviceKind::cpu, {2048, one_in, tiles});
    for (const std::int64_t tokens : {32768, 65536, 131072}) {
      for (const std::int64_t one_in : {1, 4, 8, 16}) {
        add(DeviceKind::cuda, {tokens, one_in, tiles});
        add(DeviceKind::cuda, {tokens, one_in, tiles, true});
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
