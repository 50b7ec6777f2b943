// Grouped GEMMs on the CPU: each group's rows have the bits of a GEMM of that group alone, for
// every instruction set and weight format.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

using cpu::InstructionSet;

// A group's weight, of those that lie one after the other.
GemmWeight weight_of(const GroupedGemm& all, std::int64_t group) {
  const std::int64_t outputs = all.outputs();
  GemmWeight one = all.weight;
  one.values = all.weight.values.rows(group * outputs, outputs);
  if (is_quantized(one.format)) {
    one.quantized.scales = all.weight.quantized.scales.rows(group * outputs, outputs);
  }
  if (one.bias.data != nullptr) one.bias = all.weight.bias.rows(group * outputs, outputs);
  return one;
}

// Grouped GEMMs of a setting whose outputs are those of all groups together.
class Groups {
 public:
  Groups(Backend& backend, InstructionSet set, const Setting& setting,
         const std::vector<std::int32_t>& start, unsigned seed)
      : fixture_(backend),
        tensors_(backend, setting, seed),
        start_(backend, *fixture_.stream, start),
        outputs_(setting.outputs / (std::ssize(start) - 1)),
        together_(backend, setting.type, setting.m, outputs_),
        one_by_one_(backend, setting.type, setting.m, outputs_),
        starts_(start) {
    fixture_.gemm = cpu::create_gemm(backend, set);
    tensors_.upload(*fixture_.stream);
    std::mt19937 random(seed);
    for (Matrix* out : {&together_, &one_by_one_}) {
      out->fill(random, std::nanf(""), 0);
      out->upload(*fixture_.stream);
    }
    const GemmArguments arguments = tensors_.arguments();
    grouped_ = {.weight = arguments.weight,
                .start = start_.view({std::ssize(start)}),
                .out = together_.there,
                .x = arguments.operands.x};
  }

  // How many rows have other bits than in a GEMM of their group.
  int count_wrong() {
    fixture_.gemm->run_grouped(grouped_, *fixture_.stream);
    for (std::int64_t group = 0; group < grouped_.groups(); ++group) {
      const std::int64_t begin = starts_[group], rows = starts_[group + 1] - begin;
      fixture_.run({.weight = weight_of(grouped_, group),
                    .operands = {.out = one_by_one_.there.rows(begin, rows),
                                 .x = grouped_.x.rows(begin, rows)},
                    .fusion = {}});
    }
    together_.fetch(*fixture_.stream);
    one_by_one_.fetch(*fixture_.stream);
    CHECK(together_.touched() == 0);
    int wrong = 0;
    for (std::int64_t row = 0; row < grouped_.x.shape[0]; ++row) {
      const TensorView a = together_.here.rows(row, 1), b = one_by_one_.here.rows(row, 1);
      wrong += outputs_ > 0 && std::memcmp(a.data, b.data, a.bytes()) != 0;
    }
    return wrong;
  }

 private:
  Fixture fixture_;
  GemmTensors tensors_;
  Placed<std::int32_t> start_;
  std::int64_t outputs_;
  Matrix together_, one_by_one_;
  std::vector<std::int32_t> starts_;
  GroupedGemm grouped_;
};

// Where groups of these sizes begin.
std::vector<std::int32_t> starts_of(const std::vector<std::int32_t>& sizes) {
  std::vector<std::int32_t> start = {0};
  for (const std::int32_t size : sizes) start.push_back(start.back() + size);
  return start;
}

void check(Setting setting, const std::vector<std::int32_t>& sizes, unsigned seed) {
  const auto backend = create_backend(DeviceKind::cpu);
  const std::vector<std::int32_t> start = starts_of(sizes);
  setting.m = start.back();
  setting.outputs *= std::ssize(sizes);
  for (const InstructionSet set : cpu::instruction_sets()) {
    const std::string name = str(cpu::name_of(set), setting.describe());
    CAPTURE(name);
    CAPTURE(seed);
    CHECK(Groups(*backend, set, setting, start, seed).count_wrong() == 0);
  }
}

TEST_CASE("each group's rows have the bits of a GEMM of their own") {
  const std::vector<std::int32_t> sizes = {1, 0, 16, 3, 17, 0, 40, 1, 0};
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    check({.outputs = 48, .inputs = 96, .type = type}, sizes, 1);
    check({.outputs = 37, .inputs = 45, .type = type, .bias = true}, sizes, 2);
    check({.outputs = 24, .inputs = 0, .type = type}, sizes, 3);
  }
}

TEST_CASE("grouped GEMMs with quantized weights") {
  const std::vector<std::int32_t> sizes = {2, 0, 20, 16, 0, 1};
  for (const auto& [format, group] : {std::pair{WeightFormat::fp8, std::int64_t{128}},
                                      std::pair{WeightFormat::int8, std::int64_t{32}},
                                      std::pair{WeightFormat::mxfp4, std::int64_t{32}},
                                      std::pair{WeightFormat::int4, std::int64_t{64}}}) {
    for (const bool weight_only : {true, false}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        check({.outputs = 40,
               .inputs = 200,
               .type = type,
               .bias = weight_only,
               .quantized = {.format = format, .group = group, .weight_only = weight_only}},
              sizes, 4);
      }
    }
  }
}

TEST_CASE("more rows in small groups than are prepared at once") {
  std::vector<std::int32_t> sizes(70, 15);
  sizes[30] = 0, sizes[50] = 33;
  check({.outputs = 5, .inputs = 40, .type = DType::bf16}, sizes, 5);
}

TEST_CASE("groups of random sizes, many of them empty") {
  std::mt19937 random(6);
  for (int i = 0; i < (nvllm::testing::kSanitized ? 5 : 25); ++i) {
    std::vector<std::int32_t> sizes(1 + random() % 40);
    for (std::int32_t& size : sizes) {
      if (random() % 2 == 0)
        size = static_cast<std::int32_t>(random() % (random() % 5 == 0 ? 40 : 4));
    }
    const auto outputs = static_cast<std::int64_t>(1 + random() % 60);
    const auto inputs = static_cast<std::int64_t>(1 + random() % 150);
    check({.outputs = outputs,
           .inputs = inputs,
           .type = random() % 2 == 0 ? DType::f32 : DType::bf16,
           .bias = random() % 2 == 0},
          sizes, static_cast<unsigned>(random()));
  }
}

TEST_CASE("a grouped GEMM refuses what does not fit, by name") {
  const auto backend = create_backend(DeviceKind::cpu);
  Fixture fixture(*backend);
  float memory[256] = {};
  std::int32_t start[4] = {};
  const auto with = [&](const std::function<void(GroupedGemm&)>& change) -> std::string {
    GroupedGemm grouped{.weight = {.values = {memory, DType::f32, {12, 8}}},
                        .start = {start, DType::i32, {4}},
                        .out = {memory, DType::f32, {5, 4}},
                        .x = {memory, DType::f32, {5, 8}}};
    change(grouped);
    return refusal(*backend, [&](Stream&) { check_grouped_gemm(grouped); });
  };
  using Args = GroupedGemm;
  CHECK(with([](Args&) {}) == "");
  CHECK(with([](Args& args) { args.start.shape[0] = 1; }) ==
        "gemm: start is int32 [1]; it must be int32 [groups + 1]");
  CHECK(with([](Args& args) { args.start.shape[0] = 6; }) ==
        "gemm: weight is float32 [12, 8]; it must be [groups * outputs, inputs] of 5 groups");
  CHECK(with([](Args& args) { args.x.shape[1] = 7; }).starts_with("gemm: x is float32 [5, 7]"));
  CHECK(with([](Args& args) { args.out.shape[1] = 12; }).starts_with("gemm: out is float32"));
  CHECK(with([](Args& args) { args.out.dtype = DType::bf16; }).starts_with("gemm: out is bf"));
}

}  // namespace
}  // namespace nvllm::kernels::testing
