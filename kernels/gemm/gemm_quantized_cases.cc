// GEMMs with quantized weights against their plain definition, on whichever backend is linked.
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

// On the CPU more rows take the same way, which takes minutes under sanitizers.
constexpr bool kFewShapes = nvllm::testing::kSanitized;

const std::vector<QuantizedSetting> kFormats = {
    {WeightFormat::fp8, 128}, {WeightFormat::int8, 16},  {WeightFormat::int8, 32},
    {WeightFormat::int8, 64}, {WeightFormat::int8, 128}, {WeightFormat::int4, 32},
    {WeightFormat::int4, 64}, {WeightFormat::int4, 128}};

// CPUs have one format more.
std::vector<QuantizedSetting> formats_of(const Backend& backend) {
  std::vector<QuantizedSetting> formats = kFormats;
  if (backend.kind() == DeviceKind::cpu) formats.push_back({WeightFormat::mxfp4, 32});
  return formats;
}

TEST_CASE_TEMPLATE("with a quantized weight a GEMM is what its definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(11);
  // M, outputs, inputs
  const std::vector<std::array<std::int64_t, 3>> shapes = {
      {0, 8, 128},    {1, 0, 128},    {1, 1, 1},     {1, 8, 128},    {1, 64, 512},
      {2, 24, 100},   {3, 33, 576},   {4, 389, 64},  {8, 64, 1024},  {9, 48, 384},
      {16, 96, 640},  {17, 64, 512},  {31, 65, 200}, {33, 128, 256}, {64, 192, 320},
      {112, 64, 384}, {129, 64, 128}, {200, 130, 72}};
  for (const QuantizedSetting& quantized : formats_of(*backend)) {
    for (const auto& shape : shapes) {
      Setting setting{.m = shape[0], .outputs = shape[1], .inputs = shape[2], .type = dtype_of<T>};
      setting.quantized = quantized;
      setting.float_out = random() % 4 == 0;
      setting.bias = random() % 2 == 0;
      setting.residual = random() % 2 == 0;
      setting.in_place = !setting.float_out && random() % 4 == 0;
      if (random() % 4 == 0) setting.x_gap = 8, setting.out_gap = 16;
      fixture.check(setting, random());
    }
  }
}

TEST_CASE_TEMPLATE("with a quantized weight GEMVs of all sizes are what their definition says", T,
                   HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  std::mt19937 random(14);
  // outputs, inputs: long sums and short ones, of all instances of kernels
  const std::vector<std::array<std::int64_t, 2>> shapes = {
      {4096, 1024}, {1024, 2048}, {1000, 3072}, {2560, 4096}, {264, 9728}, {3333, 2560}, {8, 24}};
  for (const QuantizedSetting& quantized : formats_of(*backend)) {
    for (const auto& shape : shapes) {
      // The CPU's kernels are the same for all of these.
      if (backend->kind() == DeviceKind::cpu && shape[0] * shape[1] > 3'000'000) continue;
      for (const Prologue prologue : {Prologue::none, Prologue::rms_norm}) {
        constexpr std::int64_t kM[] = {1, 2, 3, 4, 7, 8, 13, 16};
        const std::int64_t m = kM[random() % 8];
        Setting setting{.m = m, .outputs = shape[0], .inputs = shape[1], .type = dtype_of<T>};
        setting.quantized = quantized;
        setting.prologue = prologue;
        setting.bias = random() % 2 == 0;
        setting.residual = random() % 2 == 0;
        if (prologue == Prologue::none) setting.x_gap = 8, setting.out_gap = 16;
        fixture.check(setting, random());
      }
    }
  }
}

TEST_CASE(
    "up to 16 rows by a quantized weight are a GEMV, with a norm where every block can repeat it") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU has one kernel");
  const auto gemm = create_gemm(*backend);
  for (const QuantizedSetting& quantized : kFormats) {
    for (const std::int64_t m : {1, 8, 9, 16, 17}) {
      CAPTURE(m);
      GemmShape shape;
      shape.m = m, shape.outputs = 4096, shape.inputs = 1024;
      shape.format = quantized.format, shape.group = quantized.group, shape.weight_only = true;
      shape.fusion.prologue = Prologue::rms_norm;
      const GemmPlan normed = gemm->plan(shape);
      CHECK((normed.kernel == GemmKernel::quantized_gemv) == (m <= 16));
      CHECK(normed.prologue_kernel == (m > 8));
      shape.fusion = {.prologue = Prologue::none, .epilogue = Epilogue::gated_activation};
      CHECK_FALSE(gemm->plan(shape).epilogue_kernel);  // the small-M GEMM has one, too
      shape.fusion.activation = Activation::gelu;
      CHECK(gemm->plan(shape).epilogue_kernel);
      shape.fusion = {};
      shape.vectors.x = false;
      CHECK(gemm->plan(shape).kernel != GemmKernel::quantized_gemv);
      shape.vectors.x = true;
      shape.type = shape.out_type = DType::f32;
      CHECK(gemm->plan(shape).kernel != GemmKernel::quantized_gemv);
    }
  }
}

TEST_CASE_TEMPLATE("x may be quantized, too, within half a step", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(12);
  for (QuantizedSetting quantized : formats_of(*backend)) {
    quantized.weight_only = false;
    for (const std::int64_t m : {1, 5, 16, 40, 144, 272}) {
      if (kFewShapes && m > 40) continue;
      for (const std::int64_t inputs : {128, 576, 1024}) {
        Setting setting{.m = m, .outputs = 64, .inputs = inputs, .type = dtype_of<T>};
        setting.quantized = quantized;
        setting.residual = random() % 2 == 0;
        fixture.check(setting, random());
      }
    }
  }
}

TEST_CASE("many rows by an fp8 weight in blocks, quantized, too") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(14);
  QuantizedSetting quantized{WeightFormat::fp8, 128};
  quantized.weight_only = false, quantized.blocks = true;
  for (const std::int64_t m : {129, 144, 200, 257, 513}) {
    if (kFewShapes && m != 144) continue;
    for (const auto& [outputs, inputs] : {std::pair{128, 128}, {384, 640}, {192, 1152}}) {
      Setting setting{.m = m, .outputs = outputs, .inputs = inputs, .type = DType::bf16};
      setting.quantized = quantized;
      setting.residual = random() % 2 == 0;
      fixture.check(setting, random());
    }
  }
}

TEST_CASE("x that is fp8 already loses nothing where an fp8 weight is multiplied by x in fp8") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU multiplies fp8 weights by floats");
  Fixture fixture(*backend);
  std::mt19937 random(15);
  QuantizedSetting quantized{WeightFormat::fp8, 128};
  quantized.weight_only = false, quantized.fp8_x = true;
  // M, outputs, inputs; with smaller weights x stays what it is.
  const std::vector<std::array<std::int64_t, 3>> shapes = {
      {17, 4096, 2048}, {64, 4096, 2048}, {100, 2752, 3072}, {33, 2752, 3072}, {128, 65536, 128}};
  for (const auto& [m, outputs, inputs] : shapes) {
    Setting setting{.m = m, .outputs = outputs, .inputs = inputs, .type = DType::bf16};
    setting.quantized = quantized;
    setting.quantized.blocks = outputs % 128 == 0 && random() % 2 == 0;
    setting.bias = random() % 2 == 0;
    setting.residual = random() % 2 == 0;
    setting.float_out = random() % 4 == 0;
    if (random() % 4 == 0) setting.x_gap = 8, setting.out_gap = 16;
    fixture.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("prologues of a GEMM with a quantized weight", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(13);
  for (const QuantizedSetting& quantized : formats_of(*backend)) {
    for (const std::int64_t m : {1, 4, 8, 16, 48, 130}) {
      if (kFewShapes && m != 4 && m != 48) continue;
      for (const Prologue prologue : {Prologue::rms_norm, Prologue::gated_activation}) {
        Setting setting{.m = m, .outputs = 128, .inputs = 512, .type = dtype_of<T>};
        setting.quantized = quantized;
        setting.prologue = prologue;
        setting.residual = prologue == Prologue::gated_activation;
        fixture.check(setting, random());
      }
    }
  }
}

TEST_CASE("a row's result does not depend on the rows beside it") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const QuantizedSetting& quantized : formats_of(*backend)) {
    Setting setting{.m = 24, .outputs = 64, .inputs = 512, .type = DType::bf16};
    setting.quantized = quantized;
    GemmTensors all(*backend, setting, 5);
    all.upload(*fixture.stream);
    fixture.run(all);
    all.out.fetch(*fixture.stream);
    const Matrix first = [&] {
      Matrix copy(*backend, DType::bf16, 24, 64);
      GemmTensors::copy_values(all.out.here, copy.here);
      return copy;
    }();
    // The others change, the last row stays.
    for (std::int64_t r = 0; r < 23; ++r) {
      for (std::int64_t i = 0; i < 512; ++i) put(all.x.here, r, i, 3.0f);
    }
    all.x.upload(*fixture.stream);
    fixture.run(all);
    all.out.fetch(*fixture.stream);
    int other = 0;
    for (std::int64_t o = 0; o < 64; ++o)
      other += get(all.out.here, 23, o) != get(first.here, 23, o);
    CHECK(other == 0);
  }
}

TEST_CASE("a quantized weight that does not fit is refused") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  Setting setting{.m = 2, .outputs = 32, .inputs = 256, .type = DType::bf16};
  setting.quantized = {WeightFormat::int4, 32};
  const GemmTensors tensors(*backend, setting, 1);
  const auto refusal = [&](auto&& change) {
    GemmArguments bad = tensors.arguments();
    change(bad.weight);
    return fixture.refusal(bad);
  };
  CHECK(refusal([](GemmWeight& w) { w.quantized.group = 48; }) ==
        "gemm: weight has groups of 48 inputs, which int4 does not have");
  CHECK(refusal([](GemmWeight& w) { w.quantized.group = 16; }) ==
        "gemm: weight has groups of 16 inputs, which int4 does not have");
  CHECK(refusal([](GemmWeight& w) { w.values.shape[1] = 64; }) != "");
  CHECK(refusal([](GemmWeight& w) { w.quantized.scales.dtype = DType::f32; }) != "");
  CHECK(refusal([](GemmWeight& w) { w.quantized.scales.shape[1] = 2; }) != "");
}

}  // namespace
}  // namespace nvllm::kernels::testing
