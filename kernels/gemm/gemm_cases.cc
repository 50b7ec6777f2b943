// Products against their plain definition, on whichever backend is linked.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("a product is what its definition says, for all shapes", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  std::mt19937 random(7);
  // rows, outputs, inputs
  std::vector<std::array<std::int64_t, 3>> shapes = {
      {0, 5, 7},    {3, 0, 4},    {2, 3, 0},     {0, 0, 0},    {1, 1, 1},     {1, 8, 8},
      {2, 7, 24},   {3, 9, 40},   {8, 24, 64},   {9, 25, 72},  {16, 33, 96},  {17, 31, 104},
      {1, 389, 64}, {5, 388, 72}, {16, 777, 56}, {31, 65, 63}, {64, 64, 64},  {200, 130, 72},
      {4, 24, 1},   {7, 5, 255},  {12, 17, 257}, {40, 3, 9},   {1, 130, 4096}};
  const auto up_to = [&](unsigned most) { return static_cast<std::int64_t>(1 + random() % most); };
  for (int i = 0; i < 25; ++i) {
    shapes.push_back({up_to(20), up_to(200), 8 * up_to(60)});
  }
  for (int i = 0; i < 10; ++i) {
    shapes.push_back({up_to(80), up_to(80), up_to(300)});
  }
  for (const auto& shape : shapes) {
    Setting setting{.rows = shape[0], .outputs = shape[1], .inputs = shape[2], .type = dtype_of<T>};
    setting.float_out = random() % 4 == 0;
    setting.bias = random() % 2 == 0;
    setting.residual = random() % 2 == 0;
    setting.in_place = !setting.float_out && random() % 4 == 0;
    bench.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("long sums, for every number of rows", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t inputs : {1024, 2560, 9728}) {
    for (const std::int64_t rows : {1, 2, 8, 9, 16, 17}) {
      Setting setting{.rows = rows, .outputs = 45, .inputs = inputs, .type = dtype_of<T>};
      setting.in_place = rows % 2 == 0;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE("float32 out of 16 bits is not rounded to 16 bits first") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 5, 16, 40}) {
    Setting setting{.rows = rows, .outputs = 100, .inputs = 64, .type = DType::bf16};
    setting.float_out = true;
    bench.check(setting, 3);
    setting.bias = setting.residual = true;
    bench.check(setting, 4);
  }
}

TEST_CASE_TEMPLATE("rows may lie apart, and between them nothing is touched", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t rows : {1, 2, 4, 16, 33}) {
    for (const auto& [x_gap, out_gap] : {std::pair{8, 16}, {3, 1}, {0, 5}, {64, 0}}) {
      Setting setting{.rows = rows, .outputs = 48, .inputs = 96, .type = dtype_of<T>};
      setting.x_gap = x_gap;
      setting.out_gap = out_gap;
      bench.check(setting, ++seed);
      setting.residual = true;
      bench.check(setting, ++seed);
      setting.in_place = true;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("tensors may lie at any address", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t shift : {1, 4, 7}) {
    for (const std::int64_t rows : {1, 3, 16, 20}) {
      Setting setting{.rows = rows, .outputs = 40, .inputs = 136, .type = dtype_of<T>};
      setting.shift = shift;
      setting.bias = true;
      bench.check(setting, 5);
      setting.before = Before::rms_norm;
      bench.check(setting, 6);
    }
  }
}

TEST_CASE_TEMPLATE("with RMSNorm before: as rms_norm and then the product", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t rows : {0, 1, 2, 4, 5, 16, 40}) {
    for (const std::int64_t inputs : {1, 8, 100, 256, 2560, 5120}) {
      Setting setting{.rows = rows, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
      setting.before = Before::rms_norm;
      setting.bias = inputs == 256;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("with a gated activation before: as that and then the product", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    for (const std::int64_t rows : {0, 1, 3, 16, 40}) {
      for (const std::int64_t inputs : {0, 8, 33, 768}) {
        Setting setting{.rows = rows, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
        setting.before = Before::gated_activation;
        setting.activation = activation;
        setting.in_place = inputs == 768;
        bench.check(setting, ++seed);
      }
    }
  }
}

TEST_CASE_TEMPLATE("with a gated activation before, for every number of rows and odd lengths", T,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  std::mt19937 random(50);
  for (std::int64_t rows = 1; rows <= 17; ++rows) {
    for (const std::int64_t inputs : {1024, 3072, 8 * (1 + static_cast<int>(random() % 400))}) {
      Setting setting{.rows = rows, .outputs = 20, .inputs = inputs, .type = dtype_of<T>};
      setting.outputs += static_cast<std::int64_t>(random() % 60);
      setting.before = Before::gated_activation;
      setting.in_place = rows % 2 == 0;
      setting.bias = rows % 3 == 0;
      setting.float_out = !setting.in_place && random() % 4 == 0;
      bench.check(setting, random());
    }
  }
  for (const std::int64_t rows : {1, 2, 4, 8}) {  // more blocks than the GPU has room for
    Setting setting{.rows = rows, .outputs = 8200, .inputs = 136, .type = dtype_of<T>};
    setting.before = Before::gated_activation;
    bench.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("a NaN spoils its row or its output, and no other", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 3, 4, 16, 40}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 50, .inputs = 72, .type = dtype_of<T>};
    Product product(*backend, setting, 11);
    put(product.x.here, rows - 1, 71, std::nanf(""));
    put(product.weight.here, 13, 5, std::nanf(""));
    product.upload(*bench.stream);
    bench.matmul->linear(product.args(), *bench.stream);
    product.out.fetch(*bench.stream);
    int wrong = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < 50; ++o) {
        wrong += std::isnan(get(product.out.here, r, o)) != (r == rows - 1 || o == 13);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("infinite, huge and tiny values do as the definition", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t rows : {1, 16, 32}) {
    for (const float value :
         {kInfinity, -kInfinity, 1e38f, 60000.0f, 1e-6f, 6e-8f, 1e-30f, 1e-38f}) {
      CAPTURE(rows);
      CAPTURE(value);
      // The only one that is subnormal, which may count as zero.
      if (value == 1e-38f && dtype_of<T> == DType::bf16) continue;
      Setting setting{.rows = rows, .outputs = 20, .inputs = 40, .type = dtype_of<T>};
      Product product(*backend, setting, 12);
      // One term, or terms all alike in size: nothing overflows in one order only.
      for (std::int64_t i = 0; i < 40; ++i) put(product.x.here, 0, i, i == 7 ? value : 0.0f);
      for (std::int64_t o = 0; o < 20; ++o) put(product.weight.here, o, 7, o % 2 == 0 ? 1.5f : -2);
      product.upload(*bench.stream);
      bench.matmul->linear(product.args(), *bench.stream);
      product.out.fetch(*bench.stream);
      CHECK(count_wrong(product, product.x.here, product.residual.here) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("the same product gives the same bits", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 7, 16, 64}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 300, .inputs = 1024, .type = dtype_of<T>};
    Product product(*backend, setting, 13);
    product.upload(*bench.stream);
    std::vector<char> first;
    for (int turn = 0; turn < 5; ++turn) {
      bench.matmul->linear(product.args(), *bench.stream);
      product.out.fetch(*bench.stream);
      const auto* data = product.out.here.as<char>();
      const std::vector<char> bits(data, data + product.out.here.bytes());
      if (turn == 0) first = bits;
      CHECK(bits == first);
    }
  }
}

TEST_CASE("products run in graphs, one after another") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 16, 48}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 512, .inputs = 512, .type = DType::bf16};
    setting.before = Before::rms_norm;
    setting.residual = true;
    Product first(*backend, setting, 20), second(*backend, setting, 21);
    Linear chained = second.args();
    chained.x = first.out.there;
    first.upload(*bench.stream);
    second.upload(*bench.stream);
    const auto graph = backend->capture(*bench.stream, [&] {
      first.x.upload(*bench.stream);
      bench.matmul->linear(first.args(), *bench.stream);
      bench.matmul->linear(chained, *bench.stream);
    });
    for (unsigned launch = 0; launch < 3; ++launch) {
      std::mt19937 random(30 + launch);
      first.x.fill(random, 0, 1);
      graph->launch(*bench.stream);
      graph->launch(*bench.stream);
      first.out.fetch(*bench.stream);
      second.out.fetch(*bench.stream);
      CHECK(count_wrong(first, first.prepared(*backend, *bench.stream).here, first.residual.here) ==
            0);
      Product::copy_values(first.out.here, second.x.here);
      second.x.upload(*bench.stream);
      CHECK(count_wrong(second, second.prepared(*backend, *bench.stream).here,
                        second.residual.here) == 0);
    }
  }
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return TensorView(memory.data(), type, shape);
  };
  Linear good;
  good.out = good.residual = tensor({4, 32});
  good.x = tensor({4, 64});
  good.weight = tensor({32, 64});
  good.bias = tensor({32});
  const auto refused = [&](auto&& spoil, const char* text) {
    Linear bad = good;
    spoil(bad);
    CHECK(bench.refusal(bad).find(text) == 0);
  };
  refused(
      [&](Linear& l) {
        l.weight = tensor({32, 64}, DType::i32);
      },
      "linear: weight is int32 [32, 64]; it must be float32, bfloat16 or float16");
  refused([&](Linear& l) { l.weight = tensor({32 * 64}); }, "linear: weight is bfloat16 [2048]");
  refused([&](Linear& l) { l.weight.stride[0] = 65; },
          "linear: weight is bfloat16 [32, 64] with strides [65, 1]");
  refused(
      [&](Linear& l) {
        l.x = tensor({4, 63});
      },
      "linear: x is bfloat16 [4, 63]; it must be [rows, inputs], [4, 64]");
  refused(
      [&](Linear& l) {
        l.x = tensor({4, 64}, DType::f32);
      },
      "linear: x is float32 [4, 64], but weight is bfloat16");
  refused([&](Linear& l) { l.x.stride[0] = 63; },
          "linear: x is bfloat16 [4, 64] with strides [63, 1]");
  refused([&](Linear& l) { l.x.stride[1] = 2; }, "linear: x is bfloat16 [4, 64] with strides");
  refused([&](Linear& l) { l.x = tensor({64}); }, "linear: x is bfloat16 [64]; it must be");
  refused([&](Linear& l) { l.out = tensor({5, 32}); }, "linear: out is bfloat16 [5, 32]; it must");
  refused(
      [&](Linear& l) {
        l.out = tensor({4, 32}, DType::f16);
      },
      "linear: out is float16 [4, 32]");
  refused([&](Linear& l) { l.bias = tensor({31}); }, "linear: bias is bfloat16 [31]");
  refused([&](Linear& l) { l.bias = tensor({32}, DType::f32); }, "linear: bias is float32 [32]");
  refused([&](Linear& l) { l.residual = tensor({4, 31}); }, "linear: residual is bfloat16 [4, 31]");
  refused(
      [&](Linear& l) {
        l.residual = tensor({4, 32}, DType::f32);
      },
      "linear: residual is float32 [4, 32]");
  refused([&](Linear& l) { l.x.data = static_cast<char*>(memory.data()) + 1; },
          "linear: x lies at ");

  good.scratch = tensor({4, 64});
  good.norm_weight = tensor({64});
  good.before = Before::rms_norm;
  refused([&](Linear& l) { l.scratch = {}; }, "linear: scratch is ");
  refused([&](Linear& l) { l.scratch = tensor({3, 64}); }, "linear: scratch is bfloat16 [3, 64]");
  refused([&](Linear& l) { l.norm_weight = tensor({63}); }, "rms_norm: weight is bfloat16 [63]");
  refused([&](Linear& l) { l.x.stride[0] = 128; }, "rms_norm: x is bfloat16 [4, 64] with strides");
  good.before = Before::gated_activation;
  refused([](Linear&) {}, "linear: x is bfloat16 [4, 64]; it must be [rows, 2 * inputs], [4, 128]");
}

}  // namespace
}  // namespace nvllm::kernels::testing
