// Grouped GEMMs against the definition of a GEMM, group by group; with a gather and a gated
// activation against the operations themselves. Numbers of rows are such that every kernel of a
// backend has its turn.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

struct Groups {
  std::vector<std::int32_t> sizes;
  std::int64_t outputs, inputs;
  DType type = DType::bf16;
  bool bias = false;
  std::int64_t shift = 0;
  QuantizedSetting quantized{};

  std::vector<std::int32_t> starts() const {
    std::vector<std::int32_t> start = {0};
    for (const std::int32_t size : sizes) start.push_back(start.back() + size);
    return start;
  }
  std::int64_t m() const { return starts().back(); }
  std::string describe() const {
    std::string text = str(quantized.group == 0 ? "" : name_of(quantized.format), " ",
                           quantized.group, " ", name_of(type), " ", inputs, " -> ", outputs,
                           bias ? " bias" : "", " shift ", shift, ", rows:");
    for (const std::int32_t size : sizes) text += str(" ", size);
    return text;
  }
};

// Some outputs of a quantized weight.
GemmWeight rows_of(GemmWeight weight, std::int64_t first, std::int64_t count) {
  weight.values = weight.values.rows(first, count);
  weight.quantized.scales = weight.quantized.scales.rows(first, count);
  return weight;
}

// A grouped GEMM of random values.
class Case {
 public:
  Case(Backend& backend, const Groups& groups, unsigned seed)
      : fixture_(backend),
        groups_(groups),
        start_(backend, *fixture_.stream, groups.starts()),
        x_(backend, groups.type, groups.m(), groups.inputs, 0, groups.shift),
        weight_(backend, groups.quantized.group == 0 ? groups.type : DType::f32,
                std::ssize(groups.sizes) * groups.outputs, groups.inputs, 0, groups.shift),
        bias_(backend, groups.type, 1, std::ssize(groups.sizes) * groups.outputs),
        out_(backend, groups.type, groups.m(), groups.outputs, 0, groups.shift) {
    std::mt19937 random(seed);
    x_.fill(random, 0, 1);
    weight_.fill(random, 0, 0.3f);
    bias_.fill(random, 0, 2);
    out_.fill(random, std::nanf(""), 0);
    if (groups.quantized.fp8_x) make_fp8(x_.here);
    if (groups.quantized.group > 0) {
      packed_.emplace(backend, setting(), random, weight_).upload(*fixture_.stream);
    }
    for (Matrix* matrix : {&x_, &weight_, &bias_, &out_}) matrix->upload(*fixture_.stream);
    fixture_.stream->synchronize();
  }

  GroupedGemm grouped() const {
    GroupedGemm grouped{.weight = {.values = weight_.there},
                        .start = start_.view({std::ssize(groups_.sizes) + 1}),
                        .out = out_.there,
                        .x = x_.there};
    if (packed_) grouped.weight = packed_->there();
    if (groups_.bias) grouped.weight.bias = vector_of(bias_.there);
    return grouped;
  }

  void run() {
    fixture_.gemm->run_grouped(grouped(), *fixture_.stream);
    out_.fetch(*fixture_.stream);
    CHECK(out_.touched() == 0);
  }

  // How many results are further from the definition than rounding explains (see gemm_case.h).
  int count_wrong() {
    run();
    int wrong = 0;
    const std::vector<std::int32_t> start = groups_.starts();
    for (std::int64_t group = 0; group < std::ssize(groups_.sizes); ++group) {
      wrong += count_wrong(group, start[group], groups_.sizes[group]);
    }
    return wrong;
  }

  // An MLP of this gate-up GEMM and that down GEMM has the same bits in one call as in two.
  bool is_mlp_of_two_calls(Case& down) {
    const std::int64_t m = groups_.m(), inner = groups_.outputs / 2;
    const Matrix activated(fixture_.backend, groups_.type, m, inner);
    const Matrix gate_up(fixture_.backend, groups_.type, m + 1, groups_.outputs);
    GroupedGemm first = grouped(), second = down.grouped();
    first.out = second.x = activated.there;
    first.epilogue = Epilogue::gated_activation;
    first.gate_up = gate_up.there;
    const auto bytes = [&](const auto& run) {
      down.clear_out();
      down.fixture_.stream->synchronize();
      run();
      fixture_.stream->synchronize();
      down.out_.fetch(*down.fixture_.stream);
      CHECK(down.out_.touched() == 0);
      return bytes_of_rows(down.out_.here);
    };
    const std::vector<char> right = bytes([&] {
      fixture_.gemm->run_grouped(first, *fixture_.stream);
      fixture_.gemm->run_grouped(second, *fixture_.stream);
    });
    const std::vector<char> got =
        bytes([&] { fixture_.gemm->run_grouped_mlp(first, second, *fixture_.stream); });
    return got == right;
  }

  // Rows that are gathered, in any order and again and again, have the bits of rows that are there.
  bool gathers(unsigned seed) {
    run();
    const std::vector<char> right = bytes_of_rows(out_.here);
    std::mt19937 random(seed);
    const std::int64_t m = groups_.m();
    // The rows are somewhere among those of a larger x.
    std::vector<std::int32_t> source(static_cast<std::size_t>(m));
    Matrix table(fixture_.backend, groups_.type, 2 * m, groups_.inputs, 0, groups_.shift);
    table.fill(random, 0, 1);
    for (std::int64_t row = 0; row < m; ++row) {
      const auto at = static_cast<std::int32_t>(2 * (m - 1 - row) + random() % 2);
      source[static_cast<std::size_t>(row)] = at;
      for (std::int64_t i = 0; i < groups_.inputs; ++i)
        put(table.here, at, i, get(x_.here, row, i));
    }
    table.upload(*fixture_.stream);
    const Placed<std::int32_t> source_there(fixture_.backend, *fixture_.stream, source);
    const Matrix gathered(fixture_.backend, groups_.type, m + 1, groups_.inputs);
    GroupedGemm gathering = grouped();
    gathering.x = table.there;
    gathering.source_rows = source_there.view({m});
    gathering.gathered = gathered.there;
    clear_out();
    fixture_.gemm->run_grouped(gathering, *fixture_.stream);
    out_.fetch(*fixture_.stream);
    return bytes_of_rows(out_.here) == right;
  }

  // The epilogue's result has the bits of the activation of the plain result.
  bool activates(Activation activation) {
    run();
    const std::int64_t m = groups_.m(), columns = groups_.outputs / 2;
    Matrix right(fixture_.backend, groups_.type, m, columns);
    Matrix got(fixture_.backend, groups_.type, m, columns, 0, groups_.shift);
    const Matrix gate_up(fixture_.backend, groups_.type, m + 1, groups_.outputs);
    constexpr float kLimit = 2;  // of clamped_swiglu
    gated_activation(
        {.out = right.there, .x = out_.there, .activation = activation, .limit = kLimit},
        *fixture_.stream);
    GroupedGemm activating = grouped();
    activating.out = got.there;
    activating.epilogue = Epilogue::gated_activation;
    activating.activation = activation;
    activating.limit = kLimit;
    activating.gate_up = gate_up.there;
    got.upload(*fixture_.stream);
    fixture_.gemm->run_grouped(activating, *fixture_.stream);
    right.fetch(*fixture_.stream);
    got.fetch(*fixture_.stream);
    CHECK(got.touched() == 0);
    return bytes_of_rows(got.here) == bytes_of_rows(right.here);
  }

 private:
  void clear_out() {
    std::mt19937 random;
    out_.fill(random, std::nanf(""), 0);
    out_.upload(*fixture_.stream);
  }

  // The setting of one GEMM of all groups.
  Setting setting() const {
    return {.outputs = std::ssize(groups_.sizes) * groups_.outputs,
            .inputs = groups_.inputs,
            .type = groups_.type,
            .quantized = groups_.quantized};
  }

  int count_wrong(std::int64_t group, std::int64_t first, std::int64_t rows) {
    const std::int64_t outputs = groups_.outputs;
    std::vector<char> memory(static_cast<std::size_t>(rows * outputs) * size_of(groups_.type) + 1);
    const TensorView right(memory.data(), groups_.type, {rows, outputs});
    const TensorView x = x_.here.rows(first, rows),
                     weight = weight_.here.rows(group * outputs, outputs);
    const TensorView bias(bias_.here.as<char>() + group * outputs * size_of(groups_.type),
                          groups_.type, {1, outputs});
    GemmWeight of_group =
        packed_ ? rows_of(packed_->here(), group * outputs, outputs) : GemmWeight{.values = weight};
    if (groups_.bias) of_group.bias = vector_of(bias);
    gemm_reference(plain_call(of_group, {.out = right, .x = x}));
    const TermSums terms(x, weight);
    Setting of_rows = setting();
    of_rows.m = rows;
    const QuantizedError quantization(of_rows, x, weight);
    const Precision precision = precision_of(groups_.type);
    int wrong = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        const float wanted = get(right, r, o), added = groups_.bias ? get(bias, 0, o) : 0.0f;
        const double tolerance =
            static_cast<double>(groups_.inputs + 2) * 0x1p-23 * (terms(r, o) + std::fabs(added)) +
            precision.ulp * (std::fabs(wanted) + std::fabs(wanted - added)) + 2 * precision.min +
            quantization.of(r, o, terms(r, o));
        wrong += !(std::fabs(double{get(out_.here, first + r, o)} - wanted) <= tolerance);
      }
    }
    return wrong;
  }

  Fixture fixture_;
  Groups groups_;
  Placed<std::int32_t> start_;
  Matrix x_, weight_, bias_, out_;
  std::optional<PackedWeight> packed_;  // a quantized weight, whose values are those of weight_
};

// Rows of each group: few, more and many, with empty groups among them; also one group with all
// rows.
const std::vector<std::vector<std::int32_t>>& all_sizes() {
  static const std::vector<std::vector<std::int32_t>> sizes = {
      {1},
      {0, 1, 0, 3, 0},
      {1, 0, 17, 3, 0, 8},
      {0, 0, 32, 0},
      {0, 65, 1, 0, 9},
      {3, 0, 64, 7, 10},
      {0, 17, 0, 0, 0, 0, 0, 0, 1, 2},
      {0, 300},
      {129, 0, 1, 128, 0},
      {0, 0, 0},
  };
  return sizes;
}

void check_all(const std::function<void(const Groups&, unsigned)>& check) {
  unsigned seed = 1;
  for (const std::vector<std::int32_t>& sizes : all_sizes()) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      for (const auto& [outputs, inputs] :
           {std::pair<std::int64_t, std::int64_t>{48, 96}, {272, 200}, {16, 8}, {400, 320}}) {
        check({.sizes = sizes, .outputs = outputs, .inputs = inputs, .type = type}, seed++);
        if (nvllm::testing::kSanitized) break;
      }
      check({.sizes = sizes, .outputs = 22, .inputs = 45, .type = type}, seed++);
      check({.sizes = sizes, .outputs = 24, .inputs = 64, .type = type, .bias = true}, seed++);
      check({.sizes = sizes, .outputs = 272, .inputs = 200, .type = type, .bias = true}, seed++);
      check({.sizes = sizes, .outputs = 24, .inputs = 64, .type = type, .shift = 3}, seed++);
    }
  }
}

TEST_CASE("a grouped GEMM is a GEMM of each group") {
  BACKEND_OR_SKIP(backend);
  check_all([&](const Groups& groups, unsigned seed) {
    INFO(groups.describe());
    CHECK(Case(*backend, groups, seed).count_wrong() == 0);
  });
}

TEST_CASE("a grouped GEMM of random sizes is a GEMM of each group") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(5);
  for (int i = 0; i < (nvllm::testing::kSanitized ? 5 : 30); ++i) {
    Groups groups{.sizes = std::vector<std::int32_t>(1 + random() % 130),
                  .outputs = static_cast<std::int64_t>(8 * (1 + random() % 20)),
                  .inputs = static_cast<std::int64_t>(8 * (1 + random() % 30)),
                  .type = random() % 3 == 0 ? DType::f16 : DType::bf16,
                  .bias = random() % 2 == 0};
    const int max_rows = std::array{4, 12, 60}[random() % 3];
    for (std::int32_t& size : groups.sizes) {
      if (random() % 3 != 0) size = static_cast<std::int32_t>(random() % max_rows);
    }
    INFO(groups.describe());
    CHECK(Case(*backend, groups, static_cast<unsigned>(random())).count_wrong() == 0);
  }
}

// All quantized formats, each with every number of inputs that may share a scale.
const std::vector<QuantizedSetting>& all_formats() {
  static const std::vector<QuantizedSetting> formats = {
      {WeightFormat::fp8, 128}, {WeightFormat::mxfp4, 32}, {WeightFormat::int8, 16},
      {WeightFormat::int8, 32}, {WeightFormat::int8, 64},  {WeightFormat::int8, 128},
      {WeightFormat::int4, 32}, {WeightFormat::int4, 64},  {WeightFormat::int4, 128}};
  return formats;
}

void check_quantized(const std::function<void(const Groups&, unsigned)>& check) {
  unsigned seed = 1;
  for (const QuantizedSetting& quantized : all_formats()) {
    for (const std::vector<std::int32_t>& sizes : all_sizes()) {
      for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        const std::array<std::pair<std::int64_t, std::int64_t>, 3> shapes = {
            {{48, 384}, {272, 200}, {24, 64}}};
        const auto& [outputs, inputs] = shapes[seed % 3];
        check({.sizes = sizes,
               .outputs = outputs,
               .inputs = inputs,
               .type = type,
               .bias = seed % 2 == 0,
               .quantized = quantized},
              seed);
        ++seed;
      }
      if (nvllm::testing::kSanitized) break;
    }
  }
}

TEST_CASE("with quantized weights a grouped GEMM is a GEMM of each group") {
  BACKEND_OR_SKIP(backend);
  check_quantized([&](const Groups& groups, unsigned seed) {
    INFO(groups.describe());
    Case tested(*backend, groups, seed);
    CHECK(tested.count_wrong() == 0);
    CHECK(tested.gathers(seed));
    CHECK(tested.activates(Activation::silu));
    if (seed % 4 == 1) CHECK(tested.activates(Activation::clamped_swiglu));
  });
}

TEST_CASE("fp8 weights in blocks by rows that may become fp8, too") {
  BACKEND_OR_SKIP(backend);
  unsigned seed = 1;
  for (const std::vector<std::int32_t>& sizes : all_sizes()) {
    for (const auto& [outputs, inputs] :
         {std::pair<std::int64_t, std::int64_t>{256, 128}, {768, 384}, {384, 640}}) {
      Groups groups{.sizes = sizes,
                    .outputs = outputs,
                    .inputs = inputs,
                    .type = seed % 2 == 0 ? DType::bf16 : DType::f16,
                    .bias = seed % 3 == 0,
                    .quantized = {WeightFormat::fp8, 128}};
      groups.quantized.weight_only = false, groups.quantized.blocks = true;
      groups.quantized.fp8_x = seed % 4 != 0;
      INFO(groups.describe());
      Case tested(*backend, groups, seed);
      CHECK(tested.count_wrong() == 0);
      CHECK(tested.gathers(seed));
      if (outputs % 256 == 0) CHECK(tested.activates(Activation::silu));
      ++seed;
    }
    if (nvllm::testing::kSanitized) break;
  }
}

TEST_CASE("a grouped MLP has the same bits in one call as in two") {
  BACKEND_OR_SKIP(backend);
  unsigned seed = 1;
  for (const std::vector<std::int32_t>& sizes : all_sizes()) {
    for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8}) {
      Groups gate_up{.sizes = sizes, .outputs = 512, .inputs = 384, .bias = seed % 3 == 0};
      if (format == WeightFormat::fp8) {
        gate_up.quantized = {.format = format, .group = 128, .weight_only = false, .blocks = true};
      }
      Groups down = gate_up;
      down.outputs = 128, down.inputs = gate_up.outputs / 2;
      INFO(gate_up.describe());
      Case tested(*backend, gate_up, seed);
      Case behind(*backend, down, seed + 1);
      CHECK(tested.is_mlp_of_two_calls(behind));
      ++seed;
    }
    if (nvllm::testing::kSanitized) break;
  }
}

TEST_CASE("a grouped GEMM gathers its rows") {
  BACKEND_OR_SKIP(backend);
  check_all([&](const Groups& groups, unsigned seed) {
    INFO(groups.describe());
    CHECK(Case(*backend, groups, seed).gathers(seed));
  });
}

TEST_CASE("a grouped GEMM's gated activation has the bits of the activation itself") {
  BACKEND_OR_SKIP(backend);
  check_all([&](const Groups& groups, unsigned seed) {
    INFO(groups.describe());
    Case tested(*backend, groups, seed);
    CHECK(tested.activates(Activation::silu));
    if (seed % 4 == 0) CHECK(tested.activates(Activation::gelu_tanh));
    if (seed % 4 == 1) CHECK(tested.activates(Activation::clamped_swiglu));
  });
}

TEST_CASE("shapes of a real mixture") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("shapes for GPUs");
  std::mt19937 random(9);
  for (const int max_rows : {2, 7, 30, 100}) {
    Groups groups{.sizes = std::vector<std::int32_t>(16), .outputs = 1536, .inputs = 2048};
    for (std::int32_t& size : groups.sizes) size = static_cast<std::int32_t>(random() % max_rows);
    groups.sizes[3] = 4 * max_rows;
    INFO(groups.describe());
    Case tested(*backend, groups, static_cast<unsigned>(random()));
    CHECK(tested.count_wrong() == 0);
    CHECK(tested.gathers(max_rows));
    CHECK(tested.activates(Activation::silu));
    for (const QuantizedSetting& quantized :
         {QuantizedSetting{WeightFormat::fp8, 128}, QuantizedSetting{WeightFormat::mxfp4, 32}}) {
      groups.quantized = quantized;
      INFO(groups.describe());
      CHECK(Case(*backend, groups, static_cast<unsigned>(random())).count_wrong() == 0);
    }
  }
}

TEST_CASE("a grouped GEMM refuses operands of its gather and its epilogue that do not fit") {
  BACKEND_OR_SKIP(backend);
  float memory[256] = {};
  std::int32_t integers[8] = {};
  const auto with = [&](const std::function<void(GroupedGemm&)>& change) -> std::string {
    GroupedGemm grouped{.weight = {.values = {memory, DType::f32, {12, 8}}},
                        .start = {integers, DType::i32, {4}},
                        .out = {memory, DType::f32, {5, 2}},
                        .x = {memory, DType::f32, {3, 8}},
                        .source_rows = {integers, DType::i32, {5}},
                        .gathered = {memory, DType::f32, {5, 8}},
                        .epilogue = Epilogue::gated_activation,
                        .gate_up = {memory, DType::f32, {5, 4}}};
    change(grouped);
    return refusal(*backend, [&](Stream&) { check_grouped_gemm(grouped); });
  };
  using Args = GroupedGemm;
  CHECK(with([](Args&) {}) == "");
  CHECK(with([](Args& args) { args.source_rows.dtype = DType::f32; }) ==
        "gemm: source_rows is float32 [5]; it must be int32 [rows]");
  CHECK(with([](Args& args) { args.source_rows.shape[0] = 4; }).starts_with("gemm: out is"));
  CHECK(with([](Args& args) { args.gathered.shape[0] = 4; }).starts_with("gemm: gathered is"));
  CHECK(with([](Args& args) { args.gate_up.shape[1] = 2; }).starts_with("gemm: gate_up is"));
  CHECK(with([](Args& args) { args.out.shape[1] = 4; }).starts_with("gemm: out is"));
  CHECK(with([](Args& args) {
          args.weight.values.shape[0] = 9;
        }).starts_with("gemm: weight is float32 [9, 8] of 3 groups; ahead of a gated"));
}

}  // namespace
}  // namespace nvllm::kernels::testing
