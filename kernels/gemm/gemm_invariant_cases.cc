// Invariant GEMMs on GPUs (GemmOptions::invariant): a row has the same bits among any number of
// rows, whichever kernel computes them. (For the CPU's see cpu/row_invariance_test.cc.)
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/testing/cases.h"
#include "testing/skip.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kInvariantRows = 600;
constexpr std::int64_t kInvariantM[] = {1,  2,   7,   8,   15,  16,  17, 33,
                                        64, 100, 112, 113, 128, 129, 400};

class Rows {
 public:
  Rows(Backend& backend, const Setting& setting, bool gated, unsigned seed)
      : fixture_(backend), tensors_(backend, setting, seed), gated_(gated) {
    fixture_.gemm = create_gemm(backend, {.invariant = true});
    tensors_.upload(*fixture_.stream);
    if (gated) {
      gate_up_.emplace(backend, setting.type, setting.m, setting.outputs);
      activated_.emplace(backend, setting.type, setting.m, setting.outputs / 2);
    }
    all_ = result_of(0, setting.m);
  }

  // Which numbers of rows give other bits than all rows: "", or "1 2 8".
  std::string differing(unsigned seed) {
    std::mt19937 random(seed);
    std::string differing;
    for (const std::int64_t m : kInvariantM) {
      const auto first = static_cast<std::int64_t>(random() % (kInvariantRows - m + 1));
      const std::vector<char> some = result_of(first, m);
      const std::size_t row = all_.size() / kInvariantRows;
      if (std::memcmp(some.data(), all_.data() + row * first, some.size()) != 0)
        differing += str(differing.empty() ? "" : " ", m);
    }
    return differing;
  }

 private:
  std::vector<char> result_of(std::int64_t first, std::int64_t m) {
    GemmArguments arguments = tensors_.arguments();
    GemmOperands& operands = arguments.operands;
    if (gated_) {
      arguments.fusion.epilogue = Epilogue::gated_activation;
      operands.out = activated_->there;
      operands.epilogue.gate_up = gate_up_->there;
    }
    operands.x = operands.x.rows(first, m);
    operands.out = operands.out.rows(first, m);
    if (operands.residual.data != nullptr) operands.residual = operands.residual.rows(first, m);
    fixture_.run(arguments);
    Matrix& out = gated_ ? *activated_ : tensors_.out;
    out.fetch(*fixture_.stream);
    return bytes_of_rows(out.here.rows(first, m));
  }

  Fixture fixture_;
  GemmTensors tensors_;
  bool gated_;
  std::optional<Matrix> gate_up_, activated_;
  std::vector<char> all_;
};

void check(Backend& backend, const Setting& setting, bool gated, unsigned seed) {
  INFO(setting.describe(), gated ? " gated" : "");
  CHECK(Rows(backend, setting, gated, seed).differing(seed) == "");
}

// With everything that a GEMM may add or fuse.
void check_all(Backend& backend, const Setting& plain, unsigned seed) {
  check(backend, plain, false, seed);
  Setting more = plain;
  more.residual = true;
  check(backend, more, false, seed);
  more.bias = true;
  check(backend, more, false, seed);
  Setting normed = plain;
  normed.prologue = Prologue::rms_norm;
  check(backend, normed, false, seed);
  if (plain.outputs % 2 == 0) check(backend, plain, true, seed);
  if (plain.outputs % 2 == 0) check(backend, normed, true, seed);
  normed.float_out = true;
  check(backend, normed, false, seed);
}

// Inputs and outputs: of models, small ones, and such that no vectors or tiles are whole.
struct Sizes {
  std::int64_t inputs, outputs;
};
constexpr Sizes kSizes[] = {{1024, 4096}, {3072, 1024}, {2560, 6144}, {9728, 2560}, {576, 960},
                            {104, 72},    {2048, 128},  {45, 37},     {72, 208},    {64, 515}};

TEST_CASE_TEMPLATE("invariant: a row has the same bits among any number of rows", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("row_invariance_test has the CPU's");
  const unsigned seed = fresh_seed();
  for (const auto& [inputs, outputs] : kSizes) {
    if (dtype_of<T> == DType::f32 && inputs * outputs > 1 << 20) continue;
    const Setting plain{
        .m = kInvariantRows, .outputs = outputs, .inputs = inputs, .type = dtype_of<T>};
    check_all(*backend, plain, seed);
  }
}

TEST_CASE_TEMPLATE("invariant: a norm as the prologue has the bits of a norm before", T, float,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("there it is a kernel of its own");
  const unsigned seed = fresh_seed();
  constexpr Sizes kNormed[] = {{1024, 4096}, {2560, 1024}, {4096, 768}, {576, 960}, {104, 72}};
  for (const auto& [inputs, outputs] : kNormed) {
    for (const std::int64_t m : kInvariantM) {
      const Setting setting{.m = m,
                            .outputs = outputs,
                            .inputs = inputs,
                            .type = dtype_of<T>,
                            .prologue = Prologue::rms_norm};
      INFO(setting.describe());
      Fixture fixture(*backend);
      fixture.gemm = create_gemm(*backend, {.invariant = true});
      GemmTensors tensors(*backend, setting, seed);
      tensors.upload(*fixture.stream);
      GemmArguments arguments = tensors.arguments();
      fixture.run(arguments);
      tensors.out.fetch(*fixture.stream);
      const std::vector<char> together = bytes_of_rows(tensors.out.here);

      Matrix normed(*backend, setting.type, m, inputs);
      rms_norm({.out = normed.there,
                .x = arguments.operands.x,
                .residual = {},
                .weight = arguments.operands.prologue.norm_weight,
                .epsilon = arguments.operands.prologue.epsilon},
               *fixture.stream);
      arguments.operands.x = normed.there;
      arguments.fusion.prologue = Prologue::none;
      fixture.run(arguments);
      tensors.out.fetch(*fixture.stream);
      CHECK(bytes_of_rows(tensors.out.here) == together);
    }
  }
}

TEST_CASE("invariant: a vocabulary's logits have the same bits among any number of rows") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("row_invariance_test has the CPU's");
  const unsigned seed = fresh_seed();
  check(*backend,
        {.m = kInvariantRows,
         .outputs = 50'000,
         .inputs = 512,
         .type = DType::bf16,
         .float_out = true},
        false, seed);
}

// Few rows are multiplied by weights dequantized in registers, many by those in a workspace; x is
// not quantized, even where it could be.
TEST_CASE_TEMPLATE("invariant: with quantized weights a row has the same bits", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("row_invariance_test has the CPU's");
  const unsigned seed = fresh_seed();
  constexpr QuantizedSetting kFormats[] = {
      {.format = WeightFormat::fp8, .group = 128},
      {.format = WeightFormat::fp8, .group = 128, .weight_only = false, .blocks = true},
      {.format = WeightFormat::int8, .group = 32},
      {.format = WeightFormat::int4, .group = 32},
      {.format = WeightFormat::int4, .group = 128}};
  constexpr Sizes kQuantized[] = {{1024, 4096}, {9728, 1024}, {576, 960}, {200, 72}, {384, 45}};
  for (const QuantizedSetting& quantized : kFormats) {
    for (const auto& [inputs, outputs] : kQuantized) {
      const Setting plain{.m = kInvariantRows,
                          .outputs = outputs,
                          .inputs = inputs,
                          .type = dtype_of<T>,
                          .quantized = quantized};
      check_all(*backend, plain, seed);
    }
  }
}

// Groups of rows by quantized weights of their own.
class QuantizedGroups {
 public:
  QuantizedGroups(Backend& backend, const QuantizedSetting& quantized, unsigned seed)
      : fixture_(backend),
        tensors_(backend,
                 {.m = rows_before(kGroups),
                  .outputs = kGroups * kOutputs,
                  .inputs = kInputs,
                  .type = DType::bf16,
                  .quantized = quantized},
                 seed),
        out_(backend, DType::bf16, rows_before(kGroups), kOutputs) {
    fixture_.gemm = create_gemm(backend, {.invariant = true});
    tensors_.upload(*fixture_.stream);
  }

  // Which parts of groups have other bits alone than together with all others: "", or "3:16" for 16
  // rows of group 3.
  std::string differing(unsigned seed) {
    std::vector<std::int32_t> all = {0};
    for (int group = 1; group <= kGroups; ++group)
      all.push_back(static_cast<std::int32_t>(rows_before(group)));
    const std::vector<char> together = result_of(all, 0);
    std::mt19937 random(seed);
    std::string differing;
    for (int group = 0; group < kGroups; ++group) {
      for (const std::int64_t count : {1, 5, 16, 33, 130}) {
        const std::int64_t rows = kRowsOf[static_cast<std::size_t>(group)];
        if (count > rows) continue;
        const auto first =
            rows_before(group) + static_cast<std::int64_t>(random() % (rows - count + 1));
        std::vector<std::int32_t> start(kGroups + 1, 0);
        std::fill(start.begin() + group + 1, start.end(), static_cast<std::int32_t>(count));
        const std::vector<char> alone = result_of(start, first);
        if (std::memcmp(alone.data(), together.data() + first * kRowBytes, alone.size()) != 0)
          differing += str(group, ":", count, " ");
      }
    }
    return differing;
  }

 private:
  static constexpr int kGroups = 6;
  static constexpr std::array<std::int64_t, kGroups> kRowsOf = {1, 0, 40, 300, 7, 16};
  static constexpr std::int64_t kOutputs = 128, kInputs = 384;
  static constexpr std::int64_t kRowBytes = kOutputs * 2;

  static std::int64_t rows_before(int group) {
    return std::accumulate(kRowsOf.begin(), kRowsOf.begin() + group, std::int64_t{0});
  }

  // The result of as many rows from `first` on.
  std::vector<char> result_of(const std::vector<std::int32_t>& start, std::int64_t first) {
    const Placed<std::int32_t> starts(fixture_.backend, *fixture_.stream, start);
    const std::int64_t m = start.back();
    fixture_.gemm->run_grouped({.weight = tensors_.arguments().weight,
                                .start = starts.view({kGroups + 1}),
                                .out = out_.there.rows(first, m),
                                .x = tensors_.x.there.rows(first, m)},
                               *fixture_.stream);
    out_.fetch(*fixture_.stream);
    return bytes_of_rows(out_.here.rows(first, m));
  }

  Fixture fixture_;
  GemmTensors tensors_;
  Matrix out_;
};

TEST_CASE("invariant: with quantized weights a group's rows have the same bits among any others") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("grouped_gemm_test has the CPU's");
  const unsigned seed = fresh_seed();
  for (const QuantizedSetting& quantized :
       {QuantizedSetting{
            .format = WeightFormat::fp8, .group = 128, .weight_only = false, .blocks = true},
        QuantizedSetting{.format = WeightFormat::int8, .group = 32},
        QuantizedSetting{.format = WeightFormat::int4, .group = 64},
        QuantizedSetting{.format = WeightFormat::mxfp4, .group = 32}}) {
    CAPTURE(name_of(quantized.format));
    CHECK(QuantizedGroups(*backend, quantized, seed).differing(seed) == "");
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
