// Tokens drawn from a product without its being written down: those of the product and of a drawing, one by one.
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"
#include "kernels/sampling/sample_tokens.h"
#include "kernels/sampling/testing/sampling_case.h"

namespace nvllm::kernels::testing {
namespace {

// Rows with a slot each, whose rules differ: greedy, and hotter and hotter; the last row has none.
SamplingCase mixed(std::int64_t rows, unsigned seed) {
  SamplingCase c(rows, 1, rows, seed);
  c.first_id = 8 * seed;
  for (std::int64_t row = 0; row < rows; ++row) {
    c.slots[row] = row + 1 == rows ? -1 : static_cast<std::int32_t>(rows - 1 - row);
    const float heat = static_cast<float>(row % 7 + 1);
    c.params[row].inverse_temperature = row % 3 == 0 ? 0 : 4.0f / (heat * heat);
  }
  return c;
}

// What drawing writes.
struct Results {
  Results(Backend& backend, Stream& stream, std::int64_t rows)
      : tokens(backend, stream, std::vector<std::int32_t>(rows, -777)),
        last_tokens(backend, stream, std::vector<std::int32_t>(rows, -777)),
        bests(backend, stream, std::vector<std::int64_t>(rows, -777)),
        scratch(backend, stream, std::vector<std::int64_t>(sample_scratch_words(rows))) {}

  SampleTokens args(const SamplingRows& rows, bool whole) const {
    const std::int64_t count = rows.rows();
    SampleTokens args;
    args.rows = rows;
    args.scratch = scratch.view({sample_scratch_words(count)});
    args.tokens = tokens.view({count});
    args.last_tokens = last_tokens.view({count});
    if (!whole) args.best = bests.view({count});
    return args;
  }

  Placed<std::int32_t> tokens, last_tokens;
  Placed<std::int64_t> bests, scratch;
};

// False: it cannot be drawn from at once.
bool check_drawn(Bench& bench, const Setting& setting, unsigned seed) {
  INFO(setting.describe());
  Product product(bench.backend, setting, seed);
  product.upload(*bench.stream);
  const SamplingCase c = mixed(setting.rows, seed);
  const PlacedCase there(bench.backend, *bench.stream, c);
  SamplingRows rows = there.args();
  rows.logits = product.out.there;

  Results at_once(bench.backend, *bench.stream, setting.rows);
  Results by_and_by(bench.backend, *bench.stream, setting.rows);
  bench.stream->synchronize();
  for (const bool whole : {true, false, true}) {  // the scratch is left as it was
    if (!bench.matmul->draw(product.args(), at_once.args(rows, whole), *bench.stream)) return false;
  }
  bench.matmul->linear(product.args(), *bench.stream);
  for (const bool whole : {true, false}) {
    sample_tokens(by_and_by.args(rows, whole), *bench.stream);
  }
  CHECK(at_once.tokens.fetch() == by_and_by.tokens.fetch());
  CHECK(at_once.last_tokens.fetch() == by_and_by.last_tokens.fetch());
  CHECK(at_once.bests.fetch() == by_and_by.bests.fetch());
  CHECK(at_once.scratch.fetch() == by_and_by.scratch.fetch());
  return true;
}

TEST_CASE_TEMPLATE("tokens of a product are those of its logits", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  // rows, outputs, inputs
  constexpr std::int64_t kShapes[][3] = {{17, 50'688, 64},  {31, 75'968, 136}, {32, 50'500, 448},
                                         {33, 76'001, 8},   {64, 50'688, 512}, {63, 49'152, 72},
                                         {100, 50'001, 64}, {128, 75'968, 200}};
  int drawn = 0;
  unsigned seed = 0;
  for (const auto& [rows, outputs, inputs] : kShapes) {
    Setting setting{.rows = rows, .outputs = outputs, .inputs = inputs, .type = dtype_of<T>};
    setting.float_out = true;
    setting.out_gap = rows % 3;
    setting.before = rows % 2 == 0 ? Before::rms_norm : Before::nothing;
    drawn += check_drawn(bench, setting, ++seed);
    if (drawn == 0) break;  // here tokens are drawn from logits
  }
  if (drawn > 0) CHECK(drawn == std::size(kShapes));
}

TEST_CASE_TEMPLATE("logits of a vocabulary are what their definition says", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {24, 64, 96}) {
    Setting setting{.rows = rows, .outputs = 50'600, .inputs = 72, .type = dtype_of<T>};
    setting.float_out = true;
    setting.out_gap = 3;
    bench.check(setting, static_cast<unsigned>(rows));
  }
}

TEST_CASE("of equal logits the lowest id is drawn, and NaN wins nothing, at once as by and by") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Setting setting{.rows = 20, .outputs = 50'688, .inputs = 8, .type = DType::bf16};
  setting.float_out = true;
  Product product(*backend, setting, 1);
  const TensorView &x = product.x.here, &weight = product.weight.here;
  // Row r finds its logit in column r % 8 of the weights.
  for (std::int64_t r = 0; r < setting.rows; ++r) {
    for (std::int64_t i = 0; i < 8; ++i) put(x, r, i, i == r % 8 ? 1.0f : 0.0f);
  }
  constexpr std::array<std::int64_t, 8> kFirst = {0, 7, 63, 64, 191, 192, 30'000, 50'687};
  for (std::int64_t o = 0; o < setting.outputs; ++o) {
    for (std::int64_t i = 0; i < 8; ++i)
      put(weight, o, i, o < kFirst[static_cast<std::size_t>(i)] ? 1.0f : 2.0f);
  }
  for (std::int64_t r = 16; r < setting.rows; ++r) put(x, r, 0, std::nanf(""));
  product.upload(*bench.stream);
  SamplingCase c = mixed(setting.rows, 2);
  c.first_id = 0;
  for (SlotParams& rules : c.params) rules.inverse_temperature = 0;
  const PlacedCase there(*backend, *bench.stream, c);
  SamplingRows rows = there.args();
  rows.logits = product.out.there;
  Results results(*backend, *bench.stream, setting.rows);
  bench.stream->synchronize();
  if (!bench.matmul->draw(product.args(), results.args(rows, true), *bench.stream)) return;
  const std::vector<std::int32_t> tokens = results.tokens.fetch();
  for (std::size_t r = 0; r < 16; ++r) CHECK(tokens[r] == kFirst[r % 8]);
  for (std::size_t r = 16; r < 19; ++r) CHECK(tokens[r] == 0);
  CHECK(tokens[19] == -1);
}

}  // namespace
}  // namespace nvllm::kernels::testing
