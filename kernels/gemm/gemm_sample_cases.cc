// Sampling as the epilogue of a GEMM: the tokens are those of the GEMM and of sample_tokens() after
// it.
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/sampling/sampling.h"
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

// What sampling writes.
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

// False: this GEMM has no such epilogue.
bool check_sampled(Fixture& fixture, const Setting& setting, unsigned seed) {
  INFO(setting.describe());
  GemmTensors tensors(fixture.backend, setting, seed);
  tensors.upload(*fixture.stream);
  const SamplingCase c = mixed(setting.m, seed);
  const PlacedCase there(fixture.backend, *fixture.stream, c);
  SamplingRows rows = there.args();
  rows.logits = tensors.out.there;

  Results fused(fixture.backend, *fixture.stream, setting.m);
  Results apart(fixture.backend, *fixture.stream, setting.m);
  fixture.stream->synchronize();
  const GemmCall call = fixture.call(tensors.arguments());
  for (const bool whole : {true, false, true}) {  // the scratch is left as it was
    const SampleTokens sample = fused.args(rows, whole);
    if (!call.plan.samples || !samples_in_epilogue(sample)) return false;
    fixture.gemm->run_and_sample(call, sample, *fixture.stream);
  }
  fixture.gemm->run(call, *fixture.stream);
  for (const bool whole : {true, false}) {
    sample_tokens(apart.args(rows, whole), *fixture.stream);
  }
  CHECK(fused.tokens.fetch() == apart.tokens.fetch());
  CHECK(fused.last_tokens.fetch() == apart.last_tokens.fetch());
  CHECK(fused.bests.fetch() == apart.bests.fetch());
  CHECK(fused.scratch.fetch() == apart.scratch.fetch());
  return true;
}

TEST_CASE_TEMPLATE("tokens of a GEMM are those of its logits", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  // M, outputs, inputs
  constexpr std::int64_t kShapes[][3] = {{17, 50'688, 64},  {31, 75'968, 136}, {32, 50'500, 448},
                                         {33, 76'001, 8},   {64, 50'688, 512}, {63, 49'152, 72},
                                         {100, 50'001, 64}, {128, 75'968, 200}};
  int sampled = 0;
  unsigned seed = 0;
  for (const auto& [m, outputs, inputs] : kShapes) {
    Setting setting{.m = m, .outputs = outputs, .inputs = inputs, .type = dtype_of<T>};
    setting.float_out = true;
    setting.out_gap = m % 3;
    setting.prologue = m % 2 == 0 ? Prologue::rms_norm : Prologue::none;
    sampled += check_sampled(fixture, setting, ++seed);
    if (sampled == 0) break;  // here tokens are sampled from stored logits
  }
  if (sampled > 0) CHECK(sampled == std::size(kShapes));
}

TEST_CASE_TEMPLATE("logits of a vocabulary are what their definition says", T, HALF_TYPES) {
  GPU_SHAPES_OR_SKIP();
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  for (const std::int64_t m : {24, 64, 96}) {
    Setting setting{.m = m, .outputs = 50'600, .inputs = 72, .type = dtype_of<T>};
    setting.float_out = true;
    setting.out_gap = 3;
    fixture.check(setting, static_cast<unsigned>(m));
  }
}

TEST_CASE("of equal logits the lowest id is sampled, and NaN wins nothing, fused as apart") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  Setting setting{.m = 20, .outputs = 50'688, .inputs = 8, .type = DType::bf16};
  setting.float_out = true;
  GemmTensors tensors(*backend, setting, 1);
  const TensorView &x = tensors.x.here, &weight = tensors.weight.here;
  // Row r finds its logit in column r % 8 of the weights.
  for (std::int64_t r = 0; r < setting.m; ++r) {
    for (std::int64_t i = 0; i < 8; ++i) put(x, r, i, i == r % 8 ? 1.0f : 0.0f);
  }
  constexpr std::array<std::int64_t, 8> kFirst = {0, 7, 63, 64, 191, 192, 30'000, 50'687};
  for (std::int64_t o = 0; o < setting.outputs; ++o) {
    for (std::int64_t i = 0; i < 8; ++i)
      put(weight, o, i, o < kFirst[static_cast<std::size_t>(i)] ? 1.0f : 2.0f);
  }
  for (std::int64_t r = 16; r < setting.m; ++r) put(x, r, 0, std::nanf(""));
  tensors.upload(*fixture.stream);
  SamplingCase c = mixed(setting.m, 2);
  c.first_id = 0;
  for (SlotParams& rules : c.params) rules.inverse_temperature = 0;
  const PlacedCase there(*backend, *fixture.stream, c);
  SamplingRows rows = there.args();
  rows.logits = tensors.out.there;
  Results results(*backend, *fixture.stream, setting.m);
  fixture.stream->synchronize();
  const GemmCall call = fixture.call(tensors.arguments());
  const SampleTokens sample = results.args(rows, true);
  if (!call.plan.samples || !samples_in_epilogue(sample)) return;
  fixture.gemm->run_and_sample(call, sample, *fixture.stream);
  const std::vector<std::int32_t> tokens = results.tokens.fetch();
  for (std::size_t r = 0; r < 16; ++r) CHECK(tokens[r] == kFirst[r % 8]);
  for (std::size_t r = 16; r < 19; ++r) CHECK(tokens[r] == -1);  // of nothing but NaN
  CHECK(tokens[19] == -1);
}

}  // namespace
}  // namespace nvllm::kernels::testing
