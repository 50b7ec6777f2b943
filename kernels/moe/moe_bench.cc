// What a layer of a mixture computes, with the shapes of Qwen3-30B-A3B, by rows of the step: the
// router, the two grouped GEMMs (gate-up with its gather and its activation) and the sums; of one
// row all of it but the router's GEMM. Bytes
// per second count weights of the experts that have rows, and rows read and written; large GEMMs
// are bound by arithmetic instead. A call is 8 of the operation, of other routings each, so that
// few experts' weights are in no cache.
#include <random>

#include "device/e4m3.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/testing/references.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

constexpr std::int64_t kExperts = 128, kPerToken = 8, kHidden = 2048, kInner = 768;
constexpr int kRoutings = 8;

TensorView random(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns, float width) {
  RandomFill fill;
  fill.out = bench.tensor(DType::bf16, {rows, columns});
  fill.whole_columns = columns;
  fill.width = width;
  random_fill(fill, bench.stream());
  return fill.out;
}

// Routings of random logits, of which every expert is as likely as any other.
struct Routings {
  std::vector<Route> all;
  std::int64_t used = 0;  // experts with rows, of all routings together

  Routings(GraphBenchmark& bench, std::int64_t rows) {
    for (int i = 0; i < kRoutings; ++i) {
      const auto logits = normal(rows * kExperts, static_cast<unsigned>(i));
      Route args{.logits = bench.tensor(logits),
                 .weights = bench.tensor(DType::f32, {rows, kPerToken}),
                 .expert_start = bench.tensor(DType::i32, {kExperts + 1}),
                 .source_rows = bench.tensor(DType::i32, {rows * kPerToken}),
                 .entries = bench.tensor(DType::i32, {rows, kPerToken}),
                 .renormalize = true};
      args.logits = TensorView(args.logits.data, DType::f32, {rows, kExperts});
      route(args, bench.stream());
      all.push_back(args);
      used += experts_of(logits, rows);
    }
  }

 private:
  static std::vector<float> normal(std::int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> values;
    std::vector<float> logits(static_cast<std::size_t>(count));
    for (float& logit : logits) logit = values(random);
    return logits;
  }
  static std::int64_t experts_of(std::vector<float> logits, std::int64_t rows) {
    std::vector<float> weights(static_cast<std::size_t>(rows * kPerToken));
    std::vector<std::int32_t> start(kExperts + 1), rows_of(weights.size()), entries(weights.size());
    route_reference({.logits = {logits.data(), DType::f32, {rows, kExperts}},
                     .weights = {weights.data(), DType::f32, {rows, kPerToken}},
                     .expert_start = {start.data(), DType::i32, {kExperts + 1}},
                     .source_rows = {rows_of.data(), DType::i32, {rows * kPerToken}},
                     .entries = {entries.data(), DType::i32, {rows, kPerToken}}});
    std::int64_t used = 0;
    for (std::size_t i = 0; i < kExperts; ++i) used += start[i] < start[i + 1];
    return used;
  }
};

// Random values of fp8, a pattern again and again, or zeros.
TensorView quantized_values(GraphBenchmark& bench, const QuantizedShape& shape) {
  if (shape.format != WeightFormat::fp8)
    return bench.tensor(DType::u8, {shape.outputs, shape.row_bytes()});
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 100);
  std::vector<E4m3> values(shape.value_bytes());
  constexpr std::size_t kPattern = 1'000'003;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < kPattern ? E4m3{float_to_fp8(normal(random))} : values[i - kPattern];
  return {bench.tensor(values).data, DType::u8, {shape.outputs, shape.row_bytes()}};
}

// Weights of all experts: random, but zeros in mxfp4. Bytes of one output come with it.
struct Weights {
  GemmWeight weight;
  std::int64_t row_bytes;

  Weights(GraphBenchmark& bench, WeightFormat format, std::int64_t outputs, std::int64_t inputs)
      : row_bytes(inputs * 2) {
    if (!is_quantized(format)) {
      weight = {.values = random(bench, outputs, inputs, 0.03f)};
      return;
    }
    const std::int64_t group = format == WeightFormat::mxfp4 ? kMxfp4Group : kFp8Group;
    const QuantizedShape shape{format, outputs, inputs, group};
    row_bytes = static_cast<std::int64_t>(shape.value_bytes() + shape.scale_bytes()) / outputs;
    weight = {.values = quantized_values(bench, shape), .format = format};
    weight.quantized = {
        .scales = bench.tensor(shape.scale_type(), {outputs, shape.scale_columns()}),
        .inputs = inputs,
        .group = group,
        .blocks = format == WeightFormat::fp8};
    if (format != WeightFormat::fp8) return;
    const std::vector<float> scales(static_cast<std::size_t>(outputs * shape.scale_columns()),
                                    1e-3f);
    weight.quantized.scales.data = bench.tensor(scales).data;
  }
};

void measure_route(GraphBenchmark& bench, std::int64_t rows) {
  const Routings routings(bench, rows);
  bench.run(static_cast<std::size_t>(rows * kExperts) * sizeof(float) * kRoutings, [&] {
    for (const Route& args : routings.all) route(args, bench.stream());
  });
}

template <WeightFormat kFormat>
void measure_gate_up(GraphBenchmark& bench, std::int64_t rows) {
  const Routings routings(bench, rows);
  const auto gemm = create_gemm(bench.backend(), {.quantized = is_quantized(kFormat)});
  const std::int64_t entries = rows * kPerToken;
  const Weights weights(bench, kFormat, kExperts * 2 * kInner, kHidden);
  GroupedGemm grouped{.weight = weights.weight,
                      .start = {},
                      .out = bench.tensor(DType::bf16, {entries, kInner}),
                      .x = random(bench, rows, kHidden, 1),
                      .gathered = bench.tensor(DType::bf16, {entries, kHidden}),
                      .epilogue = Epilogue::gated_activation,
                      .gate_up = bench.tensor(DType::bf16, {entries, 2 * kInner})};
  const std::size_t traffic =
      static_cast<std::size_t>(routings.used * 2 * kInner * weights.row_bytes) +
      kRoutings * (grouped.x.bytes() + grouped.out.bytes());
  bench.run(traffic, [&] {
    for (const Route& args : routings.all) {
      grouped.start = args.expert_start;
      grouped.source_rows = args.source_rows;
      gemm->run_grouped(grouped, bench.stream());
    }
  });
}

template <WeightFormat kFormat>
void measure_down(GraphBenchmark& bench, std::int64_t rows) {
  const Routings routings(bench, rows);
  const auto gemm = create_gemm(bench.backend(), {.quantized = is_quantized(kFormat)});
  const std::int64_t entries = rows * kPerToken;
  const Weights weights(bench, kFormat, kExperts * kHidden, kInner);
  GroupedGemm grouped{.weight = weights.weight,
                      .start = {},
                      .out = bench.tensor(DType::bf16, {entries, kHidden}),
                      .x = random(bench, entries, kInner, 1)};
  const std::size_t traffic =
      static_cast<std::size_t>(routings.used * kHidden * weights.row_bytes) +
      kRoutings * (grouped.x.bytes() + grouped.out.bytes());
  bench.run(traffic, [&] {
    for (const Route& args : routings.all) {
      grouped.start = args.expert_start;
      gemm->run_grouped(grouped, bench.stream());
    }
  });
}

// All of a row's experts: the norm, the choice, both GEMMs and the sums.
template <WeightFormat kFormat>
void measure_single_token(GraphBenchmark& bench, std::int64_t rows) {
  const Routings routings(bench, rows);
  const Weights gate_up(bench, kFormat, kExperts * 2 * kInner, kHidden);
  const Weights down(bench, kFormat, kExperts * kHidden, kInner);
  SingleTokenMoe args{.out = bench.tensor(DType::bf16, {1, kHidden}),
                      .x = random(bench, 1, kHidden, 1),
                      .logits = {},
                      .gate_up = gate_up.weight,
                      .down = down.weight,
                      .k = kPerToken,
                      .renormalize = true,
                      .activated = bench.tensor(DType::bf16, {kPerToken, kInner})};
  const TensorView norm = random(bench, 1, kHidden, 1);
  args.norm_weight = TensorView(norm.data, DType::bf16, {kHidden});
  const std::size_t traffic =
      kRoutings * kPerToken *
      static_cast<std::size_t>(2 * kInner * gate_up.row_bytes + kHidden * down.row_bytes);
  bench.run(traffic, [&] {
    for (const Route& routed : routings.all) {
      args.logits = routed.logits;
      single_token_moe(args, bench.stream());
    }
  });
}

void measure_combine(GraphBenchmark& bench, std::int64_t rows) {
  const Routings routings(bench, rows);
  CombineExperts args{.out = bench.tensor(DType::bf16, {rows, kHidden}),
                      .experts = random(bench, rows * kPerToken, kHidden, 1),
                      .weights = {},
                      .entries = {}};
  args.residual = args.out;
  bench.run(kRoutings * (args.experts.bytes() + 2 * args.out.bytes()), [&] {
    for (const Route& routed : routings.all) {
      args.weights = routed.weights;
      args.entries = routed.entries;
      combine_experts(args, bench.stream());
    }
  });
}

const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t rows : {1, 8, 64, 128, 256, 512, 1024, 2048, 8192, 16384}) {
      if (kind == DeviceKind::cpu && rows > 64) continue;
      const std::string what = std::to_string(rows);
      const auto add = [&](const std::string& operation,
                           void (*measure)(GraphBenchmark&, std::int64_t)) {
        testing::register_benchmark(operation, kind, DType::bf16, what,
                                    [=](GraphBenchmark& bench) { measure(bench, rows); });
      };
      add("moe_route", measure_route);
      add("moe_gate_up", measure_gate_up<WeightFormat::bf16>);
      add("moe_down", measure_down<WeightFormat::bf16>);
      add("moe_gate_up_fp8", measure_gate_up<WeightFormat::fp8>);
      add("moe_down_fp8", measure_down<WeightFormat::fp8>);
      add("moe_gate_up_mxfp4", measure_gate_up<WeightFormat::mxfp4>);
      add("moe_down_mxfp4", measure_down<WeightFormat::mxfp4>);
      add("moe_combine", measure_combine);
      if (rows > 1 || kind == DeviceKind::cpu) continue;
      add("moe_one_row", measure_single_token<WeightFormat::bf16>);
      add("moe_one_row_fp8", measure_single_token<WeightFormat::fp8>);
      add("moe_one_row_mxfp4", measure_single_token<WeightFormat::mxfp4>);
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
