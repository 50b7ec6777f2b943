// Products of as many rows as steps that decode have, and activations after products.
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"

namespace nvllm::kernels::testing {
namespace {

// Some for every size that kernels have room for (kernels/gemm/skinny_plan.h).
constexpr std::array<std::int64_t, 12> kRows = {5, 16, 17, 31, 33, 47, 63, 64, 65, 90, 100, 120};

TEST_CASE_TEMPLATE("products of some rows are what their definition says", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench bench(*backend);
  std::mt19937 random(90);
  // outputs, inputs: long sums and short ones, one tile and many, some that are whole tiles nowhere
  constexpr std::int64_t kShapes[][2] = {{1024, 128}, {128, 2048}, {2048, 64}, {192, 640}, {64, 64},
                                         {384, 512},  {6208, 64},  {1000, 64}, {320, 200}};
  for (const std::int64_t rows : kRows) {
    for (const auto& [outputs, inputs] : kShapes) {
      Setting setting{.rows = rows, .outputs = outputs, .inputs = inputs, .type = dtype_of<T>};
      setting.float_out = random() % 4 == 0;
      setting.bias = random() % 2 == 0;
      setting.residual = random() % 2 == 0;
      setting.in_place = !setting.float_out && random() % 4 == 0;
      setting.x_gap = static_cast<std::int64_t>(random() % 3) * 8;
      constexpr std::int64_t kGaps[] = {0, 2, 8};  // whole vectors with some
      setting.out_gap = kGaps[random() % 3];
      bench.check(setting, random());
    }
  }
}

// The first rows of a product, into what its result held before.
void run_rows(Bench& bench, Product& product, std::int64_t rows) {
  Linear some = product.args();
  some.x.shape[0] = some.out.shape[0] = rows;
  product.out.upload(*bench.stream);
  bench.matmul->linear(some, *bench.stream);
  product.out.fetch(*bench.stream);
}

TEST_CASE(
    "a row's sums do not depend on the rows beside it, as long as there is room for as many") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cuda) SKIP_TEST("the CPU's kernels do not promise it");
  Bench bench(*backend);
  Setting setting{.rows = 64, .outputs = 1024, .inputs = 1024, .type = DType::bf16};
  Product all(*backend, setting, 91);
  all.upload(*bench.stream);
  bench.matmul->linear(all.args(), *bench.stream);
  all.out.fetch(*bench.stream);
  std::vector<float> expected;
  for (std::int64_t o = 0; o < 1024; ++o) expected.push_back(get(all.out.here, 3, o));
  for (const std::int64_t rows : {64, 63, 57, 49}) {
    CAPTURE(rows);
    run_rows(bench, all, rows);
    int wrong = 0;
    for (std::int64_t o = 0; o < 1024; ++o) wrong += get(all.out.here, 3, o) != expected[o];
    CHECK(wrong == 0);
  }
}

// How many results are further from the definition than the product's rounding to its type, and that of its sums,
// explain: silu's slope is below 1.1.
int count_wrong_activated(const Product& product, const TensorView& x, const TensorView& out) {
  const Setting& s = product.setting;
  const std::int64_t width = s.outputs / 2;
  std::vector<float> sums(static_cast<std::size_t>(s.rows * s.outputs));
  Linear call;
  call.out = TensorView(sums.data(), DType::f32, {s.rows, s.outputs});
  call.x = x;
  call.weight = product.weight.here;
  if (s.bias) call.bias = vector_of(product.bias.here);
  linear_reference(call);
  const Precision precision = precision_of(s.type);
  const TermSums term_sum(x, product.weight.here);
  const auto rounding = [&](std::int64_t row, std::int64_t output) {
    return static_cast<double>(s.inputs + 2) * 0x1p-23 * term_sum(row, output) +
           2 * precision.ulp * std::fabs(get(call.out, row, output)) + 2 * precision.least;
  };
  int wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t o = 0; o < width; ++o) {
      const double gate = get(call.out, r, o), up = get(call.out, r, width + o);
      const double silu = gate / (1 + std::exp(-gate)), right = silu * up;
      const double gate_error = 1.1 * rounding(r, o), up_error = rounding(r, width + o);
      const double tolerance = gate_error * (std::fabs(up) + up_error) +
                               std::fabs(silu) * up_error + 2 * precision.ulp * std::fabs(right) +
                               2 * precision.least;
      wrong += !(std::fabs(get(out, r, o) - right) <= tolerance);
    }
  }
  return wrong;
}

// The product with an activation after it.
void run_activated(Bench& bench, Product& all, Matrix& activated) {
  all.upload(*bench.stream);
  Linear args = all.args();
  args.out = activated.there;
  args.after = Linear::After::gated_activation;
  args.product = all.out.there;
  bench.matmul->linear(args, *bench.stream);
  activated.fetch(*bench.stream);
}

TEST_CASE_TEMPLATE("with a gated activation after", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench bench(*backend);
  unsigned seed = 100;
  for (const std::int64_t rows : {1, 4, 5, 16, 17, 33, 48, 64, 79, 96, 100, 128, 200}) {
    for (const auto& shape : {std::pair{96, 512}, {512, 128}, {1536, 64}, {40, 72}}) {
      const std::int64_t width = shape.first, inputs = shape.second;
      CAPTURE(rows);
      CAPTURE(width);
      Setting setting{.rows = rows, .outputs = 2 * width, .inputs = inputs, .type = dtype_of<T>};
      setting.bias = width == 40;
      Product all(*backend, setting, ++seed);
      Matrix activated(*backend, setting.type, rows, width);
      std::mt19937 random(seed);
      activated.fill(random, std::nanf(""), 0);
      activated.upload(*bench.stream);
      run_activated(bench, all, activated);
      CHECK(activated.touched() == 0);
      CHECK(count_wrong_activated(all, all.x.here, activated.here) == 0);
    }
  }
}

TEST_CASE("with RMSNorm before and a gated activation after") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 16, 64}) {
    for (const auto& shape : {std::pair{1024, 256}, {176, 1000}, {208, 2560}}) {
      const std::int64_t outputs = shape.first, inputs = shape.second;
      CAPTURE(rows);
      CAPTURE(inputs);
      Setting setting{.rows = rows, .outputs = outputs, .inputs = inputs, .type = DType::bf16};
      setting.before = Before::rms_norm;
      Product all(*backend, setting, 120);
      Matrix activated(*backend, setting.type, rows, outputs / 2);
      std::mt19937 random(121);
      activated.fill(random, std::nanf(""), 0);
      activated.upload(*bench.stream);
      run_activated(bench, all, activated);
      const Matrix x = all.prepared(*backend, *bench.stream);
      CHECK(activated.touched() == 0);
      CHECK(count_wrong_activated(all, x.here, activated.here) == 0);
    }
  }
}

// A product with the matrix that changes nothing shows what it multiplies with.
TEST_CASE_TEMPLATE("RMSNorm before a product has the bits of rms_norm", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t inputs : {8, 200, 1000, 1024, 2048, 2560}) {
    Setting setting{.rows = 16, .outputs = inputs, .inputs = inputs, .type = dtype_of<T>};
    setting.before = Before::rms_norm;
    Product product(*backend, setting, static_cast<unsigned>(inputs));
    for (std::int64_t o = 0; o < inputs; ++o) {
      for (std::int64_t i = 0; i < inputs; ++i) put(product.weight.here, o, i, o == i ? 1 : 0);
    }
    product.upload(*bench.stream);
    const Matrix x = product.prepared(*backend, *bench.stream);
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      CAPTURE(inputs);
      CAPTURE(rows);
      run_rows(bench, product, rows);
      int wrong = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < inputs; ++i) {
          wrong += get(product.out.here, r, i) != get(x.here, r, i);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("what an activation after a product cannot do is refused by name") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), DType::bf16, shape);
  };
  Linear good;
  good.x = tensor({4, 64});
  good.weight = tensor({32, 64});
  good.out = tensor({4, 16});
  good.after = Linear::After::gated_activation;
  good.product = tensor({4, 32});
  const auto refused = [&](auto&& spoil, const char* text) {
    Linear bad = good;
    spoil(bad);
    CHECK(bench.refusal(bad).find(text) == 0);
  };
  refused(
      [&](Linear& l) {
        l.out = tensor({4, 32});
      },
      "linear: out is bfloat16 [4, 32]; it must be [rows of x, outputs / 2], [4, 16]");
  refused(
      [&](Linear& l) {
        l.out = TensorView(memory.data(), DType::f32, {4, 16});
      },
      "linear: out is float32 [4, 16], but weight is bfloat16; with an activation");
  refused([&](Linear& l) { l.product = {}; }, "linear: product is ");
  refused([&](Linear& l) { l.product = tensor({3, 32}); }, "linear: product is bfloat16 [3, 32]");
  refused([&](Linear& l) { l.residual = tensor({4, 16}); }, "linear: residual is bfloat16 [4, 16]");
}

}  // namespace
}  // namespace nvllm::kernels::testing
