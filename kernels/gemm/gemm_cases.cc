// GEMMs against their plain definition, on whichever backend is linked.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("a GEMM is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(7);
  // M, outputs, inputs
  std::vector<std::array<std::int64_t, 3>> shapes = {
      {0, 5, 7},    {3, 0, 4},    {2, 3, 0},     {0, 0, 0},    {1, 1, 1},     {1, 8, 8},
      {2, 7, 24},   {3, 9, 40},   {8, 24, 64},   {9, 25, 72},  {16, 33, 96},  {17, 31, 104},
      {1, 389, 64}, {5, 388, 72}, {16, 777, 56}, {31, 65, 63}, {64, 64, 64},  {200, 130, 72},
      {4, 24, 1},   {7, 5, 255},  {12, 17, 257}, {40, 3, 9},   {1, 130, 4096}};
  const auto up_to = [&](unsigned max) { return static_cast<std::int64_t>(1 + random() % max); };
  for (int i = 0; i < 25; ++i) {
    shapes.push_back({up_to(20), up_to(200), 8 * up_to(60)});
  }
  for (int i = 0; i < 10; ++i) {
    shapes.push_back({up_to(80), up_to(80), up_to(300)});
  }
  for (const auto& shape : shapes) {
    Setting setting{.m = shape[0], .outputs = shape[1], .inputs = shape[2], .type = dtype_of<T>};
    setting.float_out = random() % 4 == 0;
    setting.bias = random() % 2 == 0;
    setting.residual = random() % 2 == 0;
    setting.in_place = !setting.float_out && random() % 4 == 0;
    fixture.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("long sums, for every M", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  unsigned seed = 0;
  for (const std::int64_t inputs : {1024, 2560, 9728}) {
    if (nvllm::testing::kSanitized && inputs > 1024) continue;
    for (const std::int64_t m : {1, 2, 8, 9, 16, 17}) {
      Setting setting{.m = m, .outputs = 45, .inputs = inputs, .type = dtype_of<T>};
      setting.in_place = m % 2 == 0;
      fixture.check(setting, ++seed);
    }
  }
}

TEST_CASE("float32 out of 16 bits is not rounded to 16 bits first") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 5, 16, 40}) {
    Setting setting{.m = m, .outputs = 100, .inputs = 64, .type = DType::bf16};
    setting.float_out = true;
    fixture.check(setting, 3);
    setting.bias = setting.residual = true;
    fixture.check(setting, 4);
  }
}

TEST_CASE_TEMPLATE("rows may lie apart, and between them nothing is touched", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  unsigned seed = 0;
  for (const std::int64_t m : {1, 2, 4, 16, 33}) {
    for (const auto& [x_gap, out_gap] : {std::pair{8, 16}, {3, 1}, {0, 5}, {64, 0}}) {
      Setting setting{.m = m, .outputs = 48, .inputs = 96, .type = dtype_of<T>};
      setting.x_gap = x_gap;
      setting.out_gap = out_gap;
      fixture.check(setting, ++seed);
      setting.residual = true;
      fixture.check(setting, ++seed);
      setting.in_place = true;
      fixture.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("tensors may lie at any address", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t shift : {1, 4, 7}) {
    for (const std::int64_t m : {1, 3, 16, 20}) {
      Setting setting{.m = m, .outputs = 40, .inputs = 136, .type = dtype_of<T>};
      setting.shift = shift;
      setting.bias = true;
      fixture.check(setting, 5);
      setting.prologue = Prologue::rms_norm;
      fixture.check(setting, 6);
    }
  }
}

TEST_CASE_TEMPLATE("with an RMSNorm prologue: as rms_norm and then the GEMM", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  unsigned seed = 0;
  for (const std::int64_t m : {0, 1, 2, 4, 5, 16, 40}) {
    for (const std::int64_t inputs : {1, 8, 100, 256, 2560, 5120}) {
      Setting setting{.m = m, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
      setting.prologue = Prologue::rms_norm;
      setting.bias = inputs == 256;
      fixture.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("with a gated activation as prologue: as that and then the GEMM", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  unsigned seed = 0;
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    for (const std::int64_t m : {0, 1, 3, 16, 40}) {
      for (const std::int64_t inputs : {0, 8, 33, 768}) {
        Setting setting{.m = m, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
        setting.prologue = Prologue::gated_activation;
        setting.activation = activation;
        setting.in_place = inputs == 768;
        fixture.check(setting, ++seed);
      }
    }
  }
}

TEST_CASE_TEMPLATE("with a gated activation as prologue, for every M and odd lengths", T,
                   HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(50);
  for (std::int64_t m = 1; m <= 17; ++m) {
    if (nvllm::testing::kSanitized && m % 8 > 1) continue;
    for (const std::int64_t inputs : {1024, 3072, 8 * (1 + static_cast<int>(random() % 400))}) {
      Setting setting{.m = m, .outputs = 20, .inputs = inputs, .type = dtype_of<T>};
      setting.outputs += static_cast<std::int64_t>(random() % 60);
      setting.prologue = Prologue::gated_activation;
      setting.in_place = m % 2 == 0;
      setting.bias = m % 3 == 0;
      setting.float_out = !setting.in_place && random() % 4 == 0;
      fixture.check(setting, random());
    }
  }
  for (const std::int64_t m : {1, 2, 4, 8}) {  // more blocks than the GPU has room for
    if (nvllm::testing::kSanitized && m > 1) continue;
    Setting setting{.m = m, .outputs = 8200, .inputs = 136, .type = dtype_of<T>};
    setting.prologue = Prologue::gated_activation;
    fixture.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("a NaN spoils its row or its output, and no other", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 3, 4, 16, 40}) {
    CAPTURE(m);
    Setting setting{.m = m, .outputs = 50, .inputs = 72, .type = dtype_of<T>};
    GemmTensors tensors(*backend, setting, 11);
    put(tensors.x.here, m - 1, 71, std::nanf(""));
    put(tensors.weight.here, 13, 5, std::nanf(""));
    tensors.upload(*fixture.stream);
    fixture.run(tensors);
    tensors.out.fetch(*fixture.stream);
    int wrong = 0;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t o = 0; o < 50; ++o) {
        wrong += std::isnan(get(tensors.out.here, r, o)) != (r == m - 1 || o == 13);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("infinite, huge and tiny values do as the definition", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t m : {1, 16, 32}) {
    for (const float value :
         {kInfinity, -kInfinity, 1e38f, 60000.0f, 1e-6f, 6e-8f, 1e-30f, 1e-38f}) {
      CAPTURE(m);
      CAPTURE(value);
      // The only one that is subnormal, which may count as zero.
      if (value == 1e-38f && dtype_of<T> == DType::bf16) continue;
      Setting setting{.m = m, .outputs = 20, .inputs = 40, .type = dtype_of<T>};
      GemmTensors tensors(*backend, setting, 12);
      // One term, or terms all alike in size: nothing overflows in one order only.
      for (std::int64_t i = 0; i < 40; ++i) put(tensors.x.here, 0, i, i == 7 ? value : 0.0f);
      for (std::int64_t o = 0; o < 20; ++o) put(tensors.weight.here, o, 7, o % 2 == 0 ? 1.5f : -2);
      tensors.upload(*fixture.stream);
      fixture.run(tensors);
      tensors.out.fetch(*fixture.stream);
      CHECK(count_wrong(tensors, tensors.x.here, tensors.residual.here) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("the same GEMM gives the same bits", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 7, 16, 64}) {
    CAPTURE(m);
    Setting setting{.m = m, .outputs = 300, .inputs = 1024, .type = dtype_of<T>};
    GemmTensors tensors(*backend, setting, 13);
    tensors.upload(*fixture.stream);
    std::vector<char> first;
    for (int run = 0; run < 5; ++run) {
      fixture.run(tensors);
      tensors.out.fetch(*fixture.stream);
      const auto* data = tensors.out.here.as<char>();
      const std::vector<char> bits(data, data + tensors.out.here.bytes());
      if (run == 0) first = bits;
      CHECK(bits == first);
    }
  }
}

TEST_CASE("GEMMs run in graphs, one after another") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {1, 16, 48}) {
    CAPTURE(m);
    Setting setting{.m = m, .outputs = 512, .inputs = 512, .type = DType::bf16};
    setting.prologue = Prologue::rms_norm;
    setting.residual = true;
    GemmTensors first(*backend, setting, 20), second(*backend, setting, 21);
    GemmArguments chained = second.arguments();
    chained.operands.x = first.out.there;
    first.upload(*fixture.stream);
    second.upload(*fixture.stream);
    const auto graph = backend->capture(*fixture.stream, [&] {
      first.x.upload(*fixture.stream);
      fixture.run(first);
      fixture.run(chained);
    });
    for (unsigned launch = 0; launch < 3; ++launch) {
      std::mt19937 random(30 + launch);
      first.x.fill(random, 0, 1);
      graph->launch(*fixture.stream);
      graph->launch(*fixture.stream);
      first.out.fetch(*fixture.stream);
      second.out.fetch(*fixture.stream);
      CHECK(count_wrong(first, first.prepared_x(*backend, *fixture.stream).here,
                        first.residual.here) == 0);
      GemmTensors::copy_values(first.out.here, second.x.here);
      second.x.upload(*fixture.stream);
      CHECK(count_wrong(second, second.prepared_x(*backend, *fixture.stream).here,
                        second.residual.here) == 0);
    }
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
