// GEMMs with as small an M as decode steps have, and gated activations as epilogues.
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/gemm/testing/references.h"

namespace nvllm::kernels::testing {
namespace {

// Some for every tile M that there is a kernel for (kernels/gemm/small_m_plan.h).
constexpr std::array<std::int64_t, 12> kSmallM = {5, 16, 17, 31, 33, 47, 63, 64, 65, 90, 100, 120};

TEST_CASE_TEMPLATE("GEMMs of small M are what their definition says", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  std::mt19937 random(90);
  // outputs, inputs: long sums and short ones, one tile and many, some that are whole tiles nowhere
  constexpr std::int64_t kShapes[][2] = {{1024, 128}, {128, 2048}, {2048, 64}, {192, 640}, {64, 64},
                                         {384, 512},  {6208, 64},  {1000, 64}, {320, 200}};
  for (const std::int64_t m : kSmallM) {
    for (const auto& [outputs, inputs] : kShapes) {
      Setting setting{.m = m, .outputs = outputs, .inputs = inputs, .type = dtype_of<T>};
      setting.float_out = random() % 4 == 0;
      setting.bias = random() % 2 == 0;
      setting.residual = random() % 2 == 0;
      setting.in_place = !setting.float_out && random() % 4 == 0;
      setting.x_gap = static_cast<std::int64_t>(random() % 3) * 8;
      constexpr std::int64_t kGaps[] = {0, 2, 8};  // whole vectors with some
      setting.out_gap = kGaps[random() % 3];
      fixture.check(setting, random());
    }
  }
}

// The first m rows of a GEMM, into what its result held before.
void run_rows(Fixture& fixture, GemmTensors& tensors, std::int64_t m) {
  GemmArguments some = tensors.arguments();
  some.operands.x.shape[0] = some.operands.out.shape[0] = m;
  tensors.out.upload(*fixture.stream);
  fixture.run(some);
  tensors.out.fetch(*fixture.stream);
}

TEST_CASE("a row's sums do not depend on the rows beside it, as long as tile M is the same") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU's kernels do not promise it");
  Fixture fixture(*backend);
  Setting setting{.m = 64, .outputs = 1024, .inputs = 1024, .type = DType::bf16};
  GemmTensors all(*backend, setting, 91);
  all.upload(*fixture.stream);
  fixture.run(all);
  all.out.fetch(*fixture.stream);
  std::vector<float> expected;
  for (std::int64_t o = 0; o < 1024; ++o) expected.push_back(get(all.out.here, 3, o));
  for (const std::int64_t m : {64, 63, 57, 49}) {
    CAPTURE(m);
    run_rows(fixture, all, m);
    int wrong = 0;
    for (std::int64_t o = 0; o < 1024; ++o) wrong += get(all.out.here, 3, o) != expected[o];
    CHECK(wrong == 0);
  }
}

// How many results are further from the definition than the sums' own error, and their rounding to
// the type, explain: silu's slope is below 1.1.
int count_wrong_activated(const GemmTensors& tensors, const TensorView& x, const TensorView& out) {
  const Setting& s = tensors.setting;
  const std::int64_t width = s.outputs / 2;
  std::vector<float> memory(static_cast<std::size_t>(s.m * s.outputs));
  const TensorView sums(memory.data(), DType::f32, {s.m, s.outputs});
  GemmWeight weight =
      tensors.packed ? tensors.packed->here() : GemmWeight{.values = tensors.weight.here};
  if (s.bias) weight.bias = vector_of(tensors.bias.here);
  gemm_reference(plain_call(weight, {.out = sums, .x = x}));
  const Precision precision = precision_of(s.type);
  const TermSums term_sum(x, tensors.weight.here);
  const QuantizedError quantized(s, x, tensors.weight.here);
  const auto rounding = [&](std::int64_t row, std::int64_t output) {
    const double terms = term_sum(row, output);
    return static_cast<double>(s.inputs + 2) * 0x1p-23 * terms + quantized.of(row, output, terms) +
           2 * precision.ulp * std::fabs(get(sums, row, output)) + 2 * precision.min;
  };
  int wrong = 0;
  for (std::int64_t r = 0; r < s.m; ++r) {
    for (std::int64_t o = 0; o < width; ++o) {
      const double gate = get(sums, r, o), up = get(sums, r, width + o);
      const double silu = gate / (1 + std::exp(-gate)), right = silu * up;
      const double gate_error = 1.1 * rounding(r, o), up_error = rounding(r, width + o);
      const double tolerance = gate_error * (std::fabs(up) + up_error) +
                               std::fabs(silu) * up_error + 2 * precision.ulp * std::fabs(right) +
                               2 * precision.min;
      wrong += !(std::fabs(get(out, r, o) - right) <= tolerance);
    }
  }
  return wrong;
}

// The GEMM with a gated activation as its epilogue.
void run_activated(Fixture& fixture, GemmTensors& all, Matrix& activated) {
  all.upload(*fixture.stream);
  GemmArguments gated = all.arguments();
  gated.operands.out = activated.there;
  gated.operands.epilogue.gate_up = all.out.there;
  gated.fusion.epilogue = Epilogue::gated_activation;
  fixture.run(gated);
  activated.fetch(*fixture.stream);
}

TEST_CASE_TEMPLATE("with a gated activation as epilogue", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  unsigned seed = 100;
  for (const std::int64_t m : {1, 4, 5, 16, 17, 33, 48, 64, 79, 96, 100, 128, 200}) {
    for (const auto& shape : {std::pair{96, 512}, {512, 128}, {1536, 64}, {40, 72}}) {
      const std::int64_t width = shape.first, inputs = shape.second;
      CAPTURE(m);
      CAPTURE(width);
      Setting setting{.m = m, .outputs = 2 * width, .inputs = inputs, .type = dtype_of<T>};
      setting.bias = width == 40;
      GemmTensors all(*backend, setting, ++seed);
      Matrix activated(*backend, setting.type, m, width);
      std::mt19937 random(seed);
      activated.fill(random, std::nanf(""), 0);
      activated.upload(*fixture.stream);
      run_activated(fixture, all, activated);
      CHECK(activated.touched() == 0);
      CHECK(count_wrong_activated(all, all.x.here, activated.here) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("with a quantized weight and a gated activation as epilogue", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  unsigned seed = 150;
  const std::vector<QuantizedSetting> formats = {
      {WeightFormat::fp8, 128},  {WeightFormat::int8, 16},
      {WeightFormat::int8, 64},  {WeightFormat::int4, 32},
      {WeightFormat::int4, 128}, {WeightFormat::fp8, 128, false, false, true}};
  for (const QuantizedSetting& format : formats) {
    for (const std::int64_t m : {1, 4, 5, 16, 17, 48, 64, 100, 128}) {
      if (backend->kind() == DeviceKind::cpu && m > 17) break;  // the same way for all of these
      for (const auto& shape : {std::pair{96, 512}, {512, 128}, {1536, 256}, {40, 72}}) {
        for (const Prologue prologue : {Prologue::none, Prologue::rms_norm}) {
          Setting setting{.m = m, .outputs = 2 * shape.first, .inputs = shape.second};
          setting.type = dtype_of<T>;
          setting.bias = shape.first == 40;
          setting.prologue = prologue;
          setting.quantized = format;
          INFO(setting.describe());
          GemmTensors all(*backend, setting, ++seed);
          Matrix activated(*backend, setting.type, m, shape.first);
          std::mt19937 random(seed);
          activated.fill(random, std::nanf(""), 0);
          activated.upload(*fixture.stream);
          run_activated(fixture, all, activated);
          const bool normed = prologue == Prologue::rms_norm;
          const Matrix x = normed ? all.prepared_x(*backend, *fixture.stream)
                                  : Matrix(*backend, setting.type, 0, 0);
          CHECK(activated.touched() == 0);
          CHECK(count_wrong_activated(all, normed ? x.here : all.x.here, activated.here) == 0);
        }
      }
    }
  }
}

// Hopper has a kernel of its own for these.
TEST_CASE("with a large quantized weight and a gated activation as epilogue") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU has one kernel for all sizes");
  Fixture fixture(*backend);
  unsigned seed = 190;
  // M, gates, inputs, whether normed: parts that are not whole of blocks, passes and stages; many
  // rows of x, which leave little memory for stages
  const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>> shapes = {
      {1, 3110, 4096, true}, {3, 3400, 3840, true}, {8, 3104, 4096, false}, {2, 3333, 3968, false}};
  for (const WeightFormat format : {WeightFormat::fp8, WeightFormat::int4}) {
    for (const auto& [m, gates, inputs, normed] : shapes) {
      Setting setting{.m = m, .outputs = 2 * gates, .inputs = inputs, .type = DType::bf16};
      setting.prologue = normed ? Prologue::rms_norm : Prologue::none;
      setting.quantized = {format, 128};
      INFO(setting.describe());
      GemmTensors all(*backend, setting, ++seed);
      Matrix activated(*backend, setting.type, m, gates);
      activated.upload(*fixture.stream);
      run_activated(fixture, all, activated);
      const Matrix x =
          normed ? all.prepared_x(*backend, *fixture.stream) : Matrix(*backend, setting.type, 0, 0);
      CHECK(activated.touched() == 0);
      CHECK(count_wrong_activated(all, normed ? x.here : all.x.here, activated.here) == 0);
    }
  }
}

TEST_CASE("with a large fp8 weight and an RMSNorm prologue") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU has one kernel for all sizes");
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 2, 3}) {
    Setting setting{.m = m, .outputs = 6200 + 7 * m, .inputs = 4096, .type = DType::bf16};
    setting.prologue = Prologue::rms_norm;
    setting.quantized = {WeightFormat::fp8, 128};
    setting.bias = m == 2;
    fixture.check(setting, static_cast<unsigned>(m));
  }
}

// GEMVs on GPUs multiply by what they make of slices of x: numbers that suit float16, and sums.
TEST_CASE("with a quantized weight, a gated activation as epilogue and x of any magnitude") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  unsigned seed = 170;
  for (const QuantizedSetting& format : {QuantizedSetting{WeightFormat::fp8, 128},
                                         {WeightFormat::int8, 128},
                                         {WeightFormat::int4, 128}}) {
    for (const std::int64_t m : {1, 3, 8, 11}) {
      for (const auto& powers : {std::pair{40, 40}, {-50, -50}, {25, -25}, {0, -200}}) {
        Setting setting{.m = m, .outputs = 512, .inputs = 1024, .type = DType::bf16};
        setting.quantized = format;
        INFO(setting.describe());
        CAPTURE(powers.first);
        GemmTensors all(*backend, setting, ++seed);
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t i = 0; i < setting.inputs; ++i) {
            const int power = i / 64 % 2 == 0 ? powers.first : powers.second;
            put(all.x.here, r, i, std::ldexp(get(all.x.here, r, i), power));
          }
        }
        Matrix activated(*backend, setting.type, m, setting.outputs / 2);
        activated.upload(*fixture.stream);
        run_activated(fixture, all, activated);
        CHECK(activated.touched() == 0);
        CHECK(count_wrong_activated(all, all.x.here, activated.here) == 0);
      }
    }
  }
}

TEST_CASE("with an fp8 weight, x in fp8 and a gated activation as epilogue") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU multiplies fp8 weights by floats");
  Fixture fixture(*backend);
  unsigned seed = 180;
  for (const std::int64_t m : {17, 64, 100}) {
    Setting setting{.m = m, .outputs = 4096, .inputs = 2048, .type = DType::bf16};
    setting.quantized = {WeightFormat::fp8, 128, false, false, true};
    CAPTURE(m);
    GemmTensors all(*backend, setting, ++seed);
    Matrix activated(*backend, setting.type, m, setting.outputs / 2);
    activated.upload(*fixture.stream);
    run_activated(fixture, all, activated);
    CHECK(activated.touched() == 0);
    CHECK(count_wrong_activated(all, all.x.here, activated.here) == 0);
  }
}

TEST_CASE("with an RMSNorm prologue and a gated activation as epilogue") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 64}) {
    for (const auto& shape : {std::pair{1024, 256}, {176, 1000}, {208, 2560}}) {
      const std::int64_t outputs = shape.first, inputs = shape.second;
      CAPTURE(m);
      CAPTURE(inputs);
      Setting setting{.m = m, .outputs = outputs, .inputs = inputs, .type = DType::bf16};
      setting.prologue = Prologue::rms_norm;
      GemmTensors all(*backend, setting, 120);
      Matrix activated(*backend, setting.type, m, outputs / 2);
      std::mt19937 random(121);
      activated.fill(random, std::nanf(""), 0);
      activated.upload(*fixture.stream);
      run_activated(fixture, all, activated);
      const Matrix x = all.prepared_x(*backend, *fixture.stream);
      CHECK(activated.touched() == 0);
      CHECK(count_wrong_activated(all, x.here, activated.here) == 0);
    }
  }
}

// A GEMM with the identity matrix shows what it multiplies with.
TEST_CASE_TEMPLATE("an RMSNorm prologue has the bits of rms_norm", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t inputs : {8, 200, 1000, 1024, 2048, 2560}) {
    Setting setting{.m = 16, .outputs = inputs, .inputs = inputs, .type = dtype_of<T>};
    setting.prologue = Prologue::rms_norm;
    GemmTensors tensors(*backend, setting, static_cast<unsigned>(inputs));
    for (std::int64_t o = 0; o < inputs; ++o) {
      for (std::int64_t i = 0; i < inputs; ++i) put(tensors.weight.here, o, i, o == i ? 1 : 0);
    }
    tensors.upload(*fixture.stream);
    const Matrix x = tensors.prepared_x(*backend, *fixture.stream);
    for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      CAPTURE(inputs);
      CAPTURE(m);
      run_rows(fixture, tensors, m);
      int wrong = 0;
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t i = 0; i < inputs; ++i) {
          wrong += get(tensors.out.here, r, i) != get(x.here, r, i);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
