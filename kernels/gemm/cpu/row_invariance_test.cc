// A row of a GEMM on the CPU gets the same bits whatever rows are computed with it, with each
// instruction set that this machine has. Up to 16 rows are computed as dot products, and more as
// blocks, which add in the same order (gemm_lane_blocks.h; with AMX, gemm_amx_bf16.cc). Blocks of
// quantized weights do not: there a row has the same bits among few rows, and among many; and in an
// invariant GEMM (GemmOptions), which has no blocks of these, among any number.
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

using cpu::InstructionSet;

constexpr std::int64_t kRows = 300;
constexpr std::int64_t kNumbers[] = {1, 2, 3, 4, 5, 8, 16, 17, 64, 299};  // of rows

// A GEMM of kRows rows in memory, and parts of it. Without a set: as an engine computes it.
class Rows {
 public:
  Rows(Backend& backend, std::optional<InstructionSet> set, const Setting& setting, unsigned seed,
       bool invariant = false)
      : fixture_(backend), tensors_(backend, setting, seed) {
    fixture_.gemm = cpu::create_gemm(backend, set, invariant);
    of_many_ = result_of(0, kRows);
    for (std::int64_t first = 0; first < kRows; first += kFew) {
      const std::vector<char> some = result_of(first, std::min(kFew, kRows - first));
      of_few_.insert(of_few_.end(), some.begin(), some.end());
    }
  }

  // Whether the rows [first, first + m), computed alone, are those of all rows; and of all rows,
  // kFew at a time.
  bool are_of_many(std::int64_t first, std::int64_t m) { return same(first, m, of_many_); }
  bool are_of_few(std::int64_t first, std::int64_t m) { return same(first, m, of_few_); }
  bool few_are_of_many() const { return of_few_ == of_many_; }

  static constexpr std::int64_t kFew = 16;

 private:
  bool same(std::int64_t first, std::int64_t m, const std::vector<char>& all) {
    const std::vector<char> some = result_of(first, m);
    return std::memcmp(some.data(), all.data() + all.size() / kRows * first, some.size()) == 0;
  }

  // The bytes of these rows of out.
  std::vector<char> result_of(std::int64_t first, std::int64_t m) {
    tensors_.upload(*fixture_.stream);
    GemmArguments arguments = tensors_.arguments();
    GemmOperands& operands = arguments.operands;
    for (TensorView* view : {&operands.x, &operands.out, &operands.residual}) {
      view->data = view->as<char>() + first * view->stride[0] * size_of(view->dtype);
      view->shape[0] = m;
    }
    fixture_.run(arguments);
    tensors_.out.fetch(*fixture_.stream);
    return bytes_of_rows(tensors_.out.here.rows(first, m));
  }

  Fixture fixture_;
  GemmTensors tensors_;
  std::vector<char> of_many_, of_few_;
};

// Which numbers of rows give other bits than 16 rows, or than all if they are more: "", or "1 2 8".
std::string differing_rows(Rows& rows, std::span<const std::int64_t> numbers, unsigned seed) {
  std::mt19937 random(seed);
  std::string differing;
  for (const std::int64_t m : numbers) {
    const auto first = static_cast<std::int64_t>(random() % (kRows - m + 1));
    const bool same = m <= Rows::kFew ? rows.are_of_few(first, m) : rows.are_of_many(first, m);
    if (!same) differing += str(differing.empty() ? "" : " ", m);
  }
  return differing;
}

void check(const Setting& setting, unsigned seed) {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const InstructionSet set : cpu::instruction_sets()) {
    const std::string name = str(cpu::name_of(set), setting.describe());
    CAPTURE(name);
    const bool quantized = setting.quantized.group != 0;
    Rows rows(*backend, set, setting, seed);
    CHECK(differing_rows(rows, kNumbers, seed) == "");
    if (!quantized) {
      CHECK(rows.few_are_of_many());
      continue;
    }
    Rows invariant(*backend, set, setting, seed, true);
    CHECK(differing_rows(invariant, kNumbers, seed) == "");
    CHECK(invariant.few_are_of_many());
  }
}

Setting setting_of(DType type, std::int64_t inputs, std::int64_t outputs) {
  return {.m = kRows,
          .outputs = outputs,
          .inputs = inputs,
          .type = type,
          .bias = true,
          .residual = true,
          .x_gap = 3,
          .out_gap = 5};
}

// Inputs and outputs: whole vectors and parts of them, enough inputs that blocks take fewer outputs
// at a time, and enough that sums of few rows with AMX come in parts.
struct Sizes {
  std::int64_t inputs, outputs;
};
constexpr Sizes kSizes[] = {{45, 37}, {576, 96}, {896, 33}, {2100, 81}, {16900, 17}};

TEST_CASE_TEMPLATE("a row has the same bits among any number of rows", T, FLOAT_TYPES) {
  GPU_SHAPES_OR_SKIP();
  const unsigned seed = fresh_seed();
  for (const auto& [inputs, outputs] : kSizes)
    check(setting_of(dtype_of<T>, inputs, outputs), seed);
}

TEST_CASE("a row has the same bits among few rows, and among many, with quantized weights") {
  GPU_SHAPES_OR_SKIP();
  const unsigned seed = fresh_seed();
  const std::vector<QuantizedSetting> settings = {
      {WeightFormat::fp8, 128, true},   {WeightFormat::int8, 16, false},
      {WeightFormat::int8, 32, true},   {WeightFormat::int8, 32, false},
      {WeightFormat::int8, 128, false}, {WeightFormat::int4, 32, true},
      {WeightFormat::int4, 32, false},  {WeightFormat::int4, 128, true},
      {WeightFormat::int4, 128, false}};
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const QuantizedSetting& quantized : settings) {
      Setting setting = setting_of(type, 576, 41);
      setting.quantized = quantized;
      check(setting, seed);
    }
  }
}

// x · weightᵀ of some outputs, which are all that the GEMM has, in float32.
template <typename T>
std::vector<float> outputs_alone(Gemm& gemm, Stream& stream, std::vector<T>& x,
                                 std::vector<T>& weight, std::int64_t inputs, std::int64_t first,
                                 std::int64_t count) {
  const auto rows = static_cast<std::int64_t>(x.size()) / inputs;
  std::vector<float> out(static_cast<std::size_t>(rows * count));
  const GemmWeight some{.values = {weight.data() + first * inputs, dtype_of<T>, {count, inputs}}};
  gemm.run(gemm.call(some, {.out = {out.data(), DType::f32, {rows, count}},
                            .x = {x.data(), dtype_of<T>, {rows, inputs}}}),
           stream);
  stream.synchronize();
  return out;
}

// So ranks may divide the outputs among them.
TEST_CASE_TEMPLATE("an output has the same bits whichever others are computed with it", T,
                   FLOAT_TYPES) {
  constexpr std::int64_t kInputs = 901, kOutputs = 143;
  constexpr std::pair<std::int64_t, std::int64_t> kParts[] = {{0, 1}, {5, 17}, {31, 64}, {90, 53}};
  std::vector<T> weight = normal_values<T>(kOutputs * kInputs, 3);
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  for (const InstructionSet set : cpu::instruction_sets()) {
    const auto gemm = cpu::create_gemm(*backend, set);
    for (const std::int64_t rows : {1, 2, 5, 16, 17, 70}) {
      std::vector<T> x = normal_values<T>(rows * kInputs, 4);
      const auto all = outputs_alone(*gemm, *stream, x, weight, kInputs, 0, kOutputs);
      int differing = 0;
      for (const auto& [first, count] : kParts) {
        const auto some = outputs_alone(*gemm, *stream, x, weight, kInputs, first, count);
        for (std::int64_t row = 0; row < rows; ++row) {
          differing += std::memcmp(some.data() + row * count, all.data() + row * kOutputs + first,
                                   count * sizeof(float)) != 0;
        }
      }
      CAPTURE(cpu::name_of(set));
      CAPTURE(rows);
      CHECK(differing == 0);
    }
  }
}

TEST_CASE("a row of bfloat16 has the same bits among any number of rows in an engine, too") {
  const unsigned seed = fresh_seed();
  const auto backend = create_backend(DeviceKind::cpu);
  for (const auto& [inputs, outputs] : kSizes) {
    Rows rows(*backend, std::nullopt, setting_of(DType::bf16, inputs, outputs), seed);
    CHECK(rows.few_are_of_many());
    CHECK(differing_rows(rows, kNumbers, seed) == "");
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
