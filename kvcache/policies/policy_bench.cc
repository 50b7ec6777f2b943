// Prompt policies beside dense attention: a whole synthetic prompt
// (kernels/sparse/testing/synthetic_prompt.h), with selection and attention together, and dense
// attention to all of it, in one run.
//   us_per_call, dense_us, times_dense   dense_us / us_per_call
//   choice_us, attention_us              each alone, of us_per_call; list_us is the part of
//                                        MInference's selection that every block of rows repeats
//   TFLOP_per_s                          of attention alone, of pairs that are attended to
//   kept                                 the share of (row, token) pairs that are attended to
//   mass                                 these pairs' share of the rows' attention, mean of rows
//   error                                |out - dense out| / |dense out|, of some rows
// XAttention at several thresholds and MInference at several parts of its published budgets are
// curves over density.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/attention/attention.h"
#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/testing/synthetic_prompt.h"
#include "kernels/sparse/vertical_slash.h"
#include "kernels/testing/bench.h"
#include "kvcache/policies/prompt_policy.h"
#include "testing/bench_backend.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::SyntheticPrompt;
using kernels::testing::SyntheticShape;

// What is known of a choice.
struct Choice {
  double seconds = 0, list_seconds = 0, attention_seconds = 0;
  double kept = 0, mass = 0;
};

// A prompt, what attention to all of it gives, and what is measured of it.
class Bench {
 public:
  Bench(std::unique_ptr<Backend> backend, const SyntheticShape& shape)
      : backend_(std::move(backend)),
        stream_(backend_->create_stream()),
        shape_(shape),
        prompt_(*backend_, *stream_, shape),
        out_(device(prompt_.rows().q.bytes())),
        lse_(device(static_cast<std::size_t>(shape.tokens * shape.heads) * sizeof(float))),
        numbers_(device(3 * sizeof(std::int32_t))) {
    const Buffer host = backend_->allocate(MemoryKind::pinned, numbers_.bytes(), "benchmark");
    auto* words = static_cast<std::int32_t*>(host.data());
    words[0] = 0;
    words[1] = words[2] = static_cast<std::int32_t>(shape.tokens);
    backend_->copy(numbers_.data(), host.data(), host.bytes(), *stream_);
    stream_->synchronize();
    dense_seconds_ = seconds_of([&] { kernels::attention(dense(), *stream_); });
    dense_rows_ = some_rows();
    dense_lse_ = fetch<float>(lse_);
  }

  Backend& backend() { return *backend_; }
  const SyntheticShape& shape() const { return shape_; }
  PromptLimits limits() const {
    return {
        .rows = shape_.tokens,
        .tokens = shape_.tokens,
        .heads = shape_.heads,
        .key_bytes = static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim) * sizeof(Bf16)};
  }
  double dense_seconds() const { return dense_seconds_; }

  double seconds(PromptPolicy& policy) {
    const PromptAttention args{out(), prompt_.rows()};
    return seconds_of([&] { policy.run_attention(args, *stream_); });
  }

  // The error of the last attention.
  double error() {
    const std::vector<float> rows = some_rows();
    double off = 0, all = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      off += std::pow(double{rows[i]} - dense_rows_[i], 2);
      all += std::pow(double{dense_rows_[i]}, 2);
    }
    return std::sqrt(off / all);
  }

  // Chooses among all tiles, segment by segment as the policy does.
  Choice choose_tiles(float threshold) {
    const std::int64_t step = std::min<std::int64_t>(8192, shape_.tokens), heads = shape_.heads;
    const std::int64_t row_tiles = step / kernels::kMaskTile;
    const std::int64_t tiles = shape_.tokens / kernels::kMaskTile;
    const Buffer counts = ints(row_tiles * heads), lists = ints(row_tiles * heads * tiles);
    const Buffer workspace = device(kernels::block_mask_workspace(step, heads, shape_.tokens));
    const Buffer gathered = device(limits().key_bytes * static_cast<std::size_t>(shape_.tokens));
    Choice choice;
    for (std::int64_t first = 0; first < shape_.tokens; first += step) {
      kernels::BlockMask args;
      args.prompt = segment(first, step);
      args.threshold = threshold;
      args.dense_rows = first + step < shape_.tokens ? 0 : kernels::kMaskTile;
      args.tile_counts = TensorView(counts.data(), DType::i32, {row_tiles, heads});
      args.tiles = TensorView(lists.data(), DType::i32, {row_tiles, heads, args.token_tiles()});
      args.workspace =
          TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())});
      args.gathered = TensorView(gathered.data(), DType::bf16,
                                 {shape_.tokens, shape_.kv_heads, shape_.head_dim});
      args.gathered_tokens = first;
      choice.seconds += seconds_of([&] { kernels::block_mask(args, *stream_); });
      kernels::SparseAttention attention = attention_to(first, step);
      attention.tile_counts = args.tile_counts;
      attention.tiles = args.tiles;
      choice.attention_seconds +=
          seconds_of([&] { kernels::sparse_attention(attention, *stream_); });
      for (const std::int32_t count : fetch<std::int32_t>(counts)) choice.kept += count;
    }
    // On the diagonal half of a tile is attended to.
    const auto whole = static_cast<double>(tiles * tiles) / 2;
    choice.kept =
        (choice.kept / static_cast<double>(heads) - static_cast<double>(tiles) / 2) / whole;
    choice.mass = mass();
    return choice;
  }

  Choice vertical_slash(const kernels::VerticalSlashBudget& budget) {
    const std::int64_t heads = shape_.heads;
    const Buffer columns = ints(heads * budget.verticals), offsets = ints(heads * budget.slashes);
    const Buffer bands = ints(heads * (budget.slashes + 1) * 2);
    const Buffer workspace = device(kernels::vertical_slash_workspace(heads, shape_.tokens));
    kernels::VerticalSlash choose;
    choose.prompt = prompt_.rows();
    choose.columns = TensorView(columns.data(), DType::i32, {heads, budget.verticals});
    choose.offsets = TensorView(offsets.data(), DType::i32, {heads, budget.slashes});
    choose.workspace =
        TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())});
    kernels::VerticalSlashIndex list;
    list.columns = choose.columns;
    list.offsets = choose.offsets;
    list.bands = TensorView(bands.data(), DType::i32, {heads, budget.slashes + 1, 2});
    list.rows = shape_.tokens;
    const std::int64_t max_ranges = kernels::max_slash_ranges(shape_.tokens, budget.slashes);
    const std::int64_t blocks = list.blocks();
    const Buffer ranges = ints(blocks * heads * max_ranges * 2),
                 range_counts = ints(blocks * heads);
    const Buffer singles = ints(blocks * heads * budget.verticals);
    const Buffer single_counts = ints(blocks * heads);
    list.ranges = TensorView(ranges.data(), DType::i32, {blocks, heads, max_ranges, 2});
    list.range_counts = TensorView(range_counts.data(), DType::i32, {blocks, heads});
    list.singles = TensorView(singles.data(), DType::i32, {blocks, heads, budget.verticals});
    list.single_counts = TensorView(single_counts.data(), DType::i32, {blocks, heads});
    kernels::SparseAttention attention = attention_to(0, shape_.tokens);
    attention.ranges = list.ranges;
    attention.range_counts = list.range_counts;
    attention.columns = list.singles;
    attention.column_counts = list.single_counts;

    Choice choice;
    const double choose_seconds = seconds_of([&] {
      kernels::vertical_slash(choose, *stream_);
      kernels::slash_bands(list.bands, choose.offsets, *stream_);
    });
    choice.list_seconds = seconds_of([&] { kernels::vertical_slash_index(list, *stream_); });
    choice.seconds = choose_seconds + choice.list_seconds;
    choice.attention_seconds = seconds_of([&] { kernels::sparse_attention(attention, *stream_); });
    choice.kept = kept_by_lines(list);
    choice.mass = mass();
    return choice;
  }

 private:
  // The best of a few runs.
  double seconds_of(const std::function<void()>& work) {
    const auto graph = backend_->capture(*stream_, work);
    graph->launch(*stream_);
    stream_->synchronize();
    return kernels::testing::seconds_of(*graph, *stream_);
  }

  Buffer device(std::size_t bytes) {
    return backend_->allocate(MemoryKind::device, bytes, "benchmark");
  }
  Buffer ints(std::int64_t count) {
    return device(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  }
  TensorView out() const {
    return TensorView(out_.data(), DType::bf16, {shape_.tokens, shape_.heads, shape_.head_dim});
  }
  TensorView lse() const {
    return TensorView(lse_.data(), DType::f32, {shape_.tokens, shape_.heads});
  }

  kernels::Attention dense() const {
    const kernels::PromptRows rows = prompt_.rows();
    auto* const words = static_cast<std::int32_t*>(numbers_.data());
    kernels::Attention args;
    args.q = rows.q;
    args.out = out();
    args.lse = lse();
    args.kv = rows.kv;
    args.query_start = TensorView(words, DType::i32, {2});
    args.kv_length = TensorView(words + 2, DType::i32, {1});
    args.group = rows.group;
    args.scale = rows.scale;
    args.max_query_rows = args.max_kv_length = shape_.tokens;
    return args;
  }
  kernels::PromptRows segment(std::int64_t first, std::int64_t count) const {
    kernels::PromptRows rows = prompt_.rows();
    rows.q = rows.q.rows(first, count);
    rows.first_position = first;
    return rows;
  }
  kernels::SparseAttention attention_to(std::int64_t first, std::int64_t count) const {
    const kernels::PromptRows rows = segment(first, count);
    kernels::SparseAttention args;
    args.out = out().rows(first, count);
    args.lse = lse().rows(first, count);
    args.q = rows.q;
    args.kv = rows.kv;
    args.group = rows.group;
    args.scale = rows.scale;
    args.first_position = first;
    return args;
  }

  template <typename T>
  std::vector<T> fetch(const Buffer& buffer) {
    return fetch<T>(buffer.data(), buffer.bytes());
  }
  template <typename T>
  std::vector<T> fetch(const void* from, std::size_t bytes) {
    const Buffer host = backend_->allocate(MemoryKind::pinned, bytes, "benchmark");
    backend_->copy(host.data(), from, bytes, *stream_);
    stream_->synchronize();
    const auto* values = static_cast<const T*>(host.data());
    return {values, values + bytes / sizeof(T)};
  }
  // 256 rows of the results, all over the prompt and at all places in a tile.
  std::vector<float> some_rows() {
    std::vector<float> values;
    for (std::int64_t i = 0; i < 256; ++i) {
      const std::int64_t row = (i * 2 + 1) * shape_.tokens / 512 + i * 37 % 128 - 64;
      const TensorView one = out().rows(std::clamp<std::int64_t>(row, 0, shape_.tokens - 1), 1);
      for (const Bf16 value : fetch<Bf16>(one.data, one.bytes())) {
        values.push_back(to_float(value));
      }
    }
    return values;
  }
  // What part of all weights those have whose log-sum-exps are there.
  double mass() {
    const std::vector<float> lse = fetch<float>(lse_);
    double sum = 0;
    for (std::size_t i = 0; i < lse.size(); ++i) sum += std::exp(lse[i] - dense_lse_[i]);
    return sum / static_cast<double>(lse.size());
  }

  // Pairs that are attended to, by the lists of every 16th block of rows.
  double kept_by_lines(const kernels::VerticalSlashIndex& list) {
    const std::int64_t heads = shape_.heads, max_ranges = list.ranges.shape[2];
    const auto ranges_of = fetch<std::int32_t>(list.range_counts.data, list.range_counts.bytes());
    const auto singles_of =
        fetch<std::int32_t>(list.single_counts.data, list.single_counts.bytes());
    double kept = 0, all = 0;
    for (std::int64_t block = list.blocks() - 1; block >= 0; block -= 16) {
      const TensorView of_block = list.ranges.rows(block, 1);
      const auto ranges = fetch<std::int32_t>(of_block.data, of_block.bytes());
      const std::int64_t end = (block + 1) * kernels::kSlashRows;
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t at = block * heads + head;
        kept += singles_of[at];
        for (std::int32_t i = 0; i < ranges_of[at]; ++i) {
          const std::int32_t* range = &ranges[(head * max_ranges + i) * 2];
          kept += range[1] - range[0];
        }
        kept -= static_cast<double>(kernels::kSlashRows) / 2;  // half of those on the diagonal
        all += static_cast<double>(end) - static_cast<double>(kernels::kSlashRows) / 2;
      }
    }
    return kept / all;
  }

  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Stream> stream_;
  const SyntheticShape shape_;
  const SyntheticPrompt prompt_;
  const Buffer out_, lse_, numbers_;
  double dense_seconds_ = 0;
  std::vector<float> dense_rows_, dense_lse_;
};

// A policy and its parameter: XAttention's threshold, or the factor of MInference's budgets.
struct Setting {
  bool tiles;
  float amount;
};

void measure(benchmark::State& state, Bench& bench, const Setting& setting) {
  const SyntheticShape& shape = bench.shape();
  const Choice choice = setting.tiles
                            ? bench.choose_tiles(setting.amount)
                            : bench.vertical_slash(MInference::lines(shape.tokens, setting.amount));
  const auto policy = setting.tiles
                          ? XAttention::create(bench.backend(), bench.limits(), setting.amount)
                          : MInference::create(bench.backend(), bench.limits(), setting.amount);
  double seconds = 0;
  for (auto _ : state) {
    seconds = bench.seconds(*policy);
    state.SetIterationTime(seconds);
  }
  const auto pairs = static_cast<double>(shape.heads * shape.tokens) *
                     static_cast<double>(shape.tokens) / 2 * choice.kept;
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["dense_us"] = bench.dense_seconds() * 1e6;
  state.counters["times_dense"] = bench.dense_seconds() / seconds;
  state.counters["choice_us"] = choice.seconds * 1e6;
  if (!setting.tiles) state.counters["list_us"] = choice.list_seconds * 1e6;
  state.counters["attention_us"] = choice.attention_seconds * 1e6;
  state.counters["TFLOP_per_s"] =
      pairs * 4 * static_cast<double>(shape.head_dim) / choice.attention_seconds * 1e-12;
  state.counters["kept"] = choice.kept;
  state.counters["mass"] = choice.mass;
  state.counters["error"] = bench.error();
}

// The prompt that was measured last: making one takes longer than measuring a policy on it.
using LastBench = std::shared_ptr<std::unique_ptr<Bench>>;

void add(const LastBench& last, DeviceKind kind, const SyntheticShape& shape,
         const Setting& setting) {
  const std::string amount = std::to_string(setting.amount);
  const std::string name = "prompt_policy/" + std::string(name_of(kind)) + "/bfloat16/" +
                           std::to_string(shape.heads) + "x" + std::to_string(shape.kv_heads) +
                           "x128/" + std::to_string(shape.tokens) +
                           (setting.tiles ? "/xattention/" : "/minference/") + amount.substr(0, 4);
  const auto run = [=](benchmark::State& state) {
    try {
      const bool there = *last != nullptr && (*last)->backend().kind() == kind &&
                         (*last)->shape().tokens == shape.tokens;
      if (!there) {
        last->reset();
        auto backend = nvllm::testing::backend_or_skip(state, kind);
        if (backend == nullptr) return;
        *last = std::make_unique<Bench>(std::move(backend), shape);
      }
      measure(state, **last, setting);
    } catch (const Error& error) {  // too little memory, say
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Iterations(1);
}

const bool registered = [] {
  const auto last = std::make_shared<std::unique_ptr<Bench>>();
  for (const std::int64_t tokens : {32768, 65536, 131072}) {
    const SyntheticShape shape{.tokens = tokens};
    for (const float budget : {1.0f, 0.25f, 0.5f, 2.0f}) {
      add(last, DeviceKind::cuda, shape, {false, budget});
    }
    for (const float threshold : {0.8f, 0.9f, 0.95f, 0.96f, 0.97f, 0.99f}) {
      add(last, DeviceKind::cuda, shape, {true, threshold});
    }
  }
  const SyntheticShape small{.tokens = 4096, .heads = 2, .kv_heads = 1};
  add(last, DeviceKind::cpu, small, {false, 1.0f});
  add(last, DeviceKind::cpu, small, {true, 0.95f});
  return true;
}();

}  // namespace
}  // namespace nvllm::kvcache
