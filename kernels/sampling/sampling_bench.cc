// The operations of this folder, in bytes of logits per second. Each registers its cases when the
// program starts.
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/pointwise/copy.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/sampling/sampling.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;
using testing::kBackends;
using testing::register_benchmark;

// Rows of random logits with a slot each.
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

// Registers "operation/backend/float32/ROWSxVOCABULARY/what" for the shapes of a step: on the GPU a
// large vocabulary, on the CPU a small one.
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

// sample_tokens(), in bytes of logits read per second.

void measure_sample_tokens(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
                           float inverse_temperature) {
  SlotParams params;
  params.inverse_temperature = inverse_temperature;
  const SamplingBench there(bench, rows, vocabulary, params);
  SampleTokens args;
  args.rows = there.rows;
  args.scratch = bench.tensor(DType::i64, {sample_scratch_words(rows)});
  args.tokens = bench.tensor(DType::i32, {rows});
  args.last_tokens = bench.tensor(DType::i32, {rows});
  bench.run(there.bytes(), [&] { sample_tokens(args, bench.stream()); });
}

const bool sample_tokens_registered = [] {
  for (const float inverse_temperature : {0.0f, 1 / 0.6f}) {
    register_sampling("sample_tokens", inverse_temperature == 0 ? "greedy" : "temperature",
                      [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                        measure_sample_tokens(bench, rows, own, inverse_temperature);
                      });
  }
  return true;
}();

// Penalties, in bytes of logits per second, as if all were read and written once. The
// history is of 1000 tokens.

constexpr std::int64_t kBlockSize = 16, kBlocks = 64;

void measure_apply_penalties(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
                             std::uint32_t flags) {
  SlotParams params;
  params.flags = SlotParams::kChangesLogits | flags;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.5f;
  const SamplingBench there(bench, rows, vocabulary, params);
  ApplyPenalties args;
  args.rows = there.rows;
  args.lists = bench.tensor(DType::i32, {rows, 64});
  args.allowed = bench.tensor(DType::i32, {rows, (vocabulary + 31) / 32});
  std::vector<std::int32_t> tokens, table;
  for (std::int32_t i = 0; i < kBlocks * kBlockSize; ++i) tokens.push_back(i * 7919 % 40'000);
  for (std::int64_t i = 0; i < rows * kBlocks; ++i) {
    table.push_back(static_cast<std::int32_t>(i % kBlocks));
  }
  args.history = TensorView(bench.tensor(tokens).data, DType::i32, {kBlocks, kBlockSize});
  args.block_table = TensorView(bench.tensor(table).data, DType::i32, {rows, kBlocks});
  bench.run(2 * there.bytes(), [&] { apply_penalties(args, bench.stream()); });
}

const bool apply_penalties_registered = [] {
  for (const std::uint32_t flags : {SlotParams::kPenalties, SlotParams::kAllowed}) {
    register_sampling("apply_penalties", flags == SlotParams::kPenalties ? "penalties" : "allowed",
                      [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                        measure_apply_penalties(bench, rows, own, flags);
                      });
  }
  return true;
}();

// Top-k, top-p and min-p, in bytes of logits per second, as if they were read once.

void measure_top_k_top_p(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
                         SlotParams params) {
  params.inverse_temperature = 1 / 0.6f;
  params.flags = SlotParams::kTruncates;
  const SamplingBench there(bench, rows, vocabulary, params);
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

const bool top_k_top_p_registered = [] {
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
    register_sampling(
        "top_k_top_p", one.what,
        [params = one.params](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
          measure_top_k_top_p(bench, rows, own, params);
        });
  }
  return true;
}();

// Log-probabilities, in bytes of logits per second, as if they were read once.

void measure_log_probabilities(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
                               std::int64_t alternatives) {
  SlotParams params;
  params.logprobs = static_cast<std::int32_t>(alternatives);
  const SamplingBench there(bench, rows, vocabulary, params);
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

const bool log_probabilities_registered = [] {
  for (const std::int64_t alternatives : {0, 20}) {
    register_sampling("log_probabilities", std::to_string(alternatives) + "_alternatives",
                      [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                        measure_log_probabilities(bench, rows, own, alternatives);
                      });
  }
  return true;
}();

// write_words(): what the new parameters of a slot cost, alone and with all lists that there may
// be.

const bool write_words_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t count : {std::int64_t{sizeof(SlotParams) / 4}, std::int64_t{4096}}) {
      testing::register_benchmark(
          "write_words", kind, DType::i32, std::to_string(count), [=](GraphBenchmark& bench) {
            const TensorView to = bench.tensor(DType::i32, {count});
            const std::vector<std::uint32_t> words(count, 7);
            bench.run(to.bytes(), [&] {
              write_words(to.as<std::uint32_t>(), words.data(), count, bench.stream());
            });
          });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
