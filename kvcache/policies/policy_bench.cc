// Prompt policies beside dense attention: a whole synthetic prompt (kernels/testing/synthetic_prompt.h), choice and
// attention together, and attention to all of it, in one run.
//   us_per_call, dense_us, times_dense   dense_us / us_per_call
//   choice_us                            of us_per_call
//   kept                                 the share of (row, token) pairs that are attended to
// XAttention at several thresholds is the curve over density.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/select_lines.h"
#include "kernels/select_tiles.h"
#include "kernels/testing/bench.h"
#include "kernels/testing/synthetic_prompt.h"
#include "kvcache/policies/prompt_policy.h"
#include "testing/bench_backend.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::SyntheticPrompt;
using kernels::testing::SyntheticShape;

// The best of a few runs.
double seconds_of(Backend& backend, Stream& stream, const std::function<void()>& work) {
  const auto graph = backend.capture(stream, work);
  graph->launch(stream);
  stream.synchronize();
  return kernels::testing::seconds_of(*graph, stream);
}

class Bench {
 public:
  Bench(Backend& backend, const SyntheticShape& shape)
      : backend_(backend),
        stream_(backend.create_stream()),
        shape_(shape),
        prompt_(backend, *stream_, shape),
        limits_{.rows = shape.tokens, .tokens = shape.tokens, .heads = shape.heads},
        out_(backend.allocate(MemoryKind::device, prompt_.rows().q.bytes(), "benchmark")),
        numbers_(backend.allocate(MemoryKind::device, 3 * sizeof(std::int32_t), "benchmark")) {
    const Buffer host = backend.allocate(MemoryKind::pinned, numbers_.bytes(), "benchmark");
    auto* words = static_cast<std::int32_t*>(host.data());
    words[0] = 0;
    words[1] = words[2] = static_cast<std::int32_t>(shape.tokens);
    backend.copy(numbers_.data(), host.data(), host.bytes(), *stream_);
    stream_->synchronize();
  }

  const PromptLimits& limits() const { return limits_; }

  double dense_seconds() {
    const kernels::PromptRows rows = prompt_.rows();
    auto* const words = static_cast<std::int32_t*>(numbers_.data());
    kernels::Attention args;
    args.q = rows.q;
    args.out = out();
    args.kv = rows.kv;
    args.query_start = TensorView(words, DType::i32, {2});
    args.kv_length = TensorView(words + 2, DType::i32, {1});
    args.group = rows.group;
    args.scale = rows.scale;
    args.max_query_rows = args.max_kv_length = shape_.tokens;
    return seconds_of(backend_, *stream_, [&] { kernels::attention(args, *stream_); });
  }

  double seconds(PromptPolicy& policy) {
    const PromptAttention args{out(), prompt_.rows()};
    return seconds_of(backend_, *stream_, [&] { policy.attend(args, *stream_); });
  }

  struct Choice {
    double seconds, kept;
  };

  // Of all tiles, segment by segment as the policy does.
  Choice choose_tiles(float threshold) {
    constexpr std::int64_t kRows = 4096;
    const std::int64_t row_tiles = kRows / kernels::kSelectTile, heads = shape_.heads;
    const std::int64_t tiles = shape_.tokens / kernels::kSelectTile;
    const Buffer counts = ints(row_tiles * heads), lists = ints(row_tiles * heads * tiles);
    const Buffer workspace = backend_.allocate(
        MemoryKind::device, kernels::select_tiles_workspace(kRows, heads, shape_.tokens),
        "benchmark");
    Choice choice{};
    double kept = 0;
    for (std::int64_t first = 0; first < shape_.tokens; first += kRows) {
      kernels::SelectTiles args;
      args.prompt = segment(first, kRows);
      args.threshold = threshold;
      args.tile_counts = TensorView(counts.data(), DType::i32, {row_tiles, heads});
      args.tiles = TensorView(lists.data(), DType::i32, {row_tiles, heads, args.token_tiles()});
      args.workspace =
          TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())});
      choice.seconds +=
          seconds_of(backend_, *stream_, [&] { kernels::select_tiles(args, *stream_); });
      for (const std::int32_t count : fetch(counts)) kept += count;
    }
    choice.kept = kept / (static_cast<double>(heads * tiles) * static_cast<double>(tiles + 1) / 2);
    return choice;
  }

  Choice choose_lines() {
    const kernels::LineBudget budget = kernels::line_budget(shape_.tokens);
    const std::int64_t heads = shape_.heads;
    const Buffer columns = ints(heads * budget.verticals), offsets = ints(heads * budget.slashes);
    const Buffer bands = ints(heads * (budget.slashes + 1) * 2);
    const Buffer workspace = backend_.allocate(
        MemoryKind::device, kernels::choose_lines_workspace(heads, shape_.tokens), "benchmark");
    kernels::ChooseLines choose;
    choose.prompt = prompt_.rows();
    choose.columns = TensorView(columns.data(), DType::i32, {heads, budget.verticals});
    choose.offsets = TensorView(offsets.data(), DType::i32, {heads, budget.slashes});
    choose.workspace =
        TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())});
    const TensorView bands_view(bands.data(), DType::i32, {heads, budget.slashes + 1, 2});
    Choice choice{};
    choice.seconds = seconds_of(backend_, *stream_, [&] {
      kernels::choose_lines(choose, *stream_);
      kernels::band_lines(bands_view, choose.offsets, *stream_);
    });
    choice.kept = kept_by_lines(fetch(columns), fetch(bands), budget);
    return choice;
  }

 private:
  TensorView out() const {
    return TensorView(out_.data(), DType::bf16, {shape_.tokens, shape_.heads, shape_.head_dim});
  }
  Buffer ints(std::int64_t count) {
    return backend_.allocate(MemoryKind::device,
                             static_cast<std::size_t>(count) * sizeof(std::int32_t), "benchmark");
  }
  std::vector<std::int32_t> fetch(const Buffer& buffer) {
    const Buffer host = backend_.allocate(MemoryKind::pinned, buffer.bytes(), "benchmark");
    backend_.copy(host.data(), buffer.data(), buffer.bytes(), *stream_);
    stream_->synchronize();
    const auto* words = static_cast<const std::int32_t*>(host.data());
    return {words, words + buffer.bytes() / sizeof(std::int32_t)};
  }
  kernels::PromptRows segment(std::int64_t first, std::int64_t count) const {
    kernels::PromptRows rows = prompt_.rows();
    rows.q = TensorView(rows.q.as<Bf16>() + first * rows.q.stride[0], DType::bf16,
                        {count, shape_.heads, shape_.head_dim});
    rows.first_position = first;
    return rows;
  }

  // Tokens that bands hold of a prompt of `tokens`, and columns beside them, for rows at every distance.
  double kept_by_lines(const std::vector<std::int32_t>& columns,
                       const std::vector<std::int32_t>& bands, kernels::LineBudget budget) const {
    double kept = 0;
    const std::int64_t width = (budget.slashes + 1) * 2;
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const std::int32_t* mine = bands.data() + head * width;
      for (std::int64_t e = kernels::kLineRows; e <= shape_.tokens; e += kernels::kLineRows) {
        double inside = 0;
        for (std::int32_t i = 1; i <= mine[0]; ++i) {
          const auto to = std::min<std::int64_t>(mine[2 * i + 1], e);
          inside += static_cast<double>(std::max<std::int64_t>(0, to - mine[2 * i]));
        }
        // Columns are counted as if none lay in a band: at most a percent or so more.
        const auto seen = std::lower_bound(columns.begin() + head * budget.verticals,
                                           columns.begin() + (head + 1) * budget.verticals,
                                           static_cast<std::int32_t>(e));
        const auto beside = static_cast<double>(seen - (columns.begin() + head * budget.verticals));
        kept += std::min(inside + beside, static_cast<double>(e)) * kernels::kLineRows;
      }
    }
    const auto tokens = static_cast<double>(shape_.tokens);
    return kept / (static_cast<double>(shape_.heads) * tokens * (tokens + 1) / 2);
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  SyntheticShape shape_;
  SyntheticPrompt prompt_;

  const PromptLimits limits_;
  Buffer out_, numbers_;
};

void measure(benchmark::State& state, DeviceKind kind, const SyntheticShape& shape,
             float threshold) {  // 0: MInference
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  try {
    Bench bench(*backend, shape);
    const auto choice = threshold > 0 ? bench.choose_tiles(threshold) : bench.choose_lines();
    const auto policy = threshold > 0 ? XAttention::create(*backend, bench.limits(), threshold)
                                      : MInference::create(*backend, bench.limits());
    const double dense = bench.dense_seconds();
    double seconds = 0;
    for (auto _ : state) {
      seconds = bench.seconds(*policy);
      state.SetIterationTime(seconds);
    }
    state.counters["us_per_call"] = seconds * 1e6;
    state.counters["dense_us"] = dense * 1e6;
    state.counters["times_dense"] = dense / seconds;
    state.counters["choice_us"] = choice.seconds * 1e6;
    state.counters["kept"] = choice.kept;
  } catch (const Error& error) {  // too little memory, say
    state.SkipWithError(error.what());
  }
}

void add(DeviceKind kind, const SyntheticShape& shape, float threshold) {
  std::string name = "prompt_policy/" + std::string(name_of(kind)) + "/bfloat16/" +
                     std::to_string(shape.heads) + "x" + std::to_string(shape.kv_heads) + "x128/" +
                     std::to_string(shape.tokens);
  name += threshold > 0 ? "/xattention/" + std::to_string(threshold).substr(0, 4) : "/minference";
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { measure(state, kind, shape, threshold); })
      ->UseManualTime()
      ->Iterations(1);
}

const bool registered = [] {
  for (const std::int64_t tokens : {32768, 65536, 131072}) {
    for (const float threshold : {0.0f, 0.5f, 0.8f, 0.9f, 0.95f, 0.99f}) {
      add(DeviceKind::cuda, {.tokens = tokens}, threshold);
    }
  }
  for (const float threshold : {0.0f, 0.95f}) {
    add(DeviceKind::cpu, {.tokens = 4096, .heads = 2, .kv_heads = 1}, threshold);
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kvcache
