// Products that were measured, and choices that are handed on.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("after tuning, products are as right as before", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Setting setting{.rows = 70, .outputs = 96, .inputs = 128, .type = dtype_of<T>};
  setting.residual = true;
  {
    Product most(*backend, setting, 40);
    most.upload(*bench.stream);
    bench.matmul->tune(most.args(), *bench.stream);
    most.out.fetch(*bench.stream);
    CHECK(most.out.touched() == 0);
  }
  for (const std::int64_t rows : {1, 16, 17, 32, 60, 64, 69, 70, 71}) {
    setting.rows = rows;
    bench.check(setting, static_cast<unsigned>(rows));
  }
}

// What a product gives, in bits.
std::vector<char> bits_of(Bench& bench, const Setting& setting) {
  Product product(bench.backend, setting, 60);
  product.upload(*bench.stream);
  bench.matmul->linear(product.args(), *bench.stream);
  product.out.fetch(*bench.stream);
  CHECK(count_wrong(product, product.x.here, product.residual.here) == 0);
  const auto* data = product.out.here.as<char>();
  return {data, data + product.out.here.bytes()};
}

TEST_CASE_TEMPLATE("what one chose by measuring another takes over, and measures nothing", T, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  Bench first(*backend), second(*backend);
  std::vector<Setting> settings;
  for (const std::int64_t rows : {16, 140, 170, 200}) {
    settings.push_back(
        {.rows = rows, .outputs = 256, .inputs = 384, .type = dtype_of<T>, .residual = true});
  }
  settings.push_back({.rows = 16, .outputs = 16384, .inputs = 32, .type = dtype_of<T>});
  settings.back().float_out = true;
  for (const Setting& setting : settings) {
    Product one(*backend, setting, 61), other(*backend, setting, 62);
    one.upload(*first.stream);
    other.upload(*first.stream);
    const std::array<Linear, 2> alike = {one.args(), other.args()};
    first.matmul->tune(alike, *first.stream);
  }
  const ProductChoices choices = first.matmul->choices();
  CHECK(choices.size() == (backend->kind() == DeviceKind::cuda ? 3 : 0));  // few rows need none

  ProductChoices all = choices;
  all["another machine: another product"] = "id=1";
  second.matmul->adopt(all);
  CHECK(second.matmul->known() == choices.size());
  for (Setting setting : settings) {
    const std::vector<char> expected = bits_of(first, setting);
    CHECK(bits_of(second, setting) == expected);
    Product one(*backend, setting, 63);
    one.upload(*second.stream);
    second.matmul->tune(one.args(), *second.stream);
  }
  CHECK(second.matmul->choices().empty());
}

TEST_CASE("choices that are none, or of other shapes, do no harm") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench first(*backend);
  const Setting setting{.rows = 192, .outputs = 1024, .inputs = 512, .type = DType::bf16};
  Product product(*backend, setting, 64);
  product.upload(*first.stream);
  first.matmul->tune(product.args(), *first.stream);
  for (const std::string& bad :
       {std::string("nonsense"), std::string(),
        std::string("id=99999 tile=1 stages=1 splits=1 reduction=0 swizzle=0 custom=0 inner=0 "
                    "cluster=0"),
        std::string("id=66 tile=70000 stages=70000 splits=1 reduction=0 swizzle=0 custom=0 "
                    "inner=0 cluster=60"),
        std::string("id=6 tile=20 stages=1 splits=4 reduction=1 swizzle=0 custom=0 inner=0 "
                    "cluster=0")}) {
    Bench second(*backend);
    ProductChoices choices = first.matmul->choices();
    for (auto& [key, choice] : choices) choice = bad;
    second.matmul->adopt(choices);
    bits_of(second, setting);
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
