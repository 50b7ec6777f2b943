// GEMMs with quantized weights on the CPU with each instruction set that this machine has.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

const std::vector<QuantizedSetting> kSettings = {
    {WeightFormat::fp8, 128, true},   {WeightFormat::fp8, 128, false},
    {WeightFormat::int8, 16, true},   {WeightFormat::int8, 16, false},
    {WeightFormat::int8, 32, true},   {WeightFormat::int8, 32, false},
    {WeightFormat::int8, 64, false},  {WeightFormat::int8, 128, true},
    {WeightFormat::int8, 128, false}, {WeightFormat::int4, 32, true},
    {WeightFormat::int4, 32, false},  {WeightFormat::int4, 64, true},
    {WeightFormat::int4, 64, false},  {WeightFormat::int4, 128, true},
    {WeightFormat::int4, 128, false}, {WeightFormat::mxfp4, 32, true},
    {WeightFormat::mxfp4, 32, false}};

// Under sanitizers, which look at memory and not at numbers, each format once.
std::vector<QuantizedSetting> settings() {
  if (!nvllm::testing::kSanitized) return kSettings;
  std::vector<QuantizedSetting> some;
  for (const QuantizedSetting& setting : kSettings) {
    if (some.empty() || some.back().format != setting.format) some.push_back(setting);
  }
  return some;
}

// Calls run(fixture) with the GEMMs of each instruction set.
template <typename Run>
void with_each_set(Backend& backend, Run&& run) {
  for (const cpu::InstructionSet set : cpu::instruction_sets()) {
    const std::string name = cpu::name_of(set);
    CAPTURE(name);
    Fixture fixture(backend);
    fixture.gemm = cpu::create_gemm(backend, set);
    run(fixture);
  }
}

// The bytes of out.
std::vector<char> result_of(Fixture& fixture, GemmTensors& tensors,
                            const GemmArguments& arguments) {
  tensors.upload(*fixture.stream);
  fixture.run(arguments);
  tensors.out.fetch(*fixture.stream);
  return bytes_of_rows(tensors.out.here);
}
std::vector<char> result_of(Fixture& fixture, GemmTensors& tensors) {
  return result_of(fixture, tensors, tensors.arguments());
}

TEST_CASE_TEMPLATE("quantized weights with each instruction set", T, FLOAT_TYPES) {
  const auto backend = create_backend(DeviceKind::cpu);
  with_each_set(*backend, [&](Fixture& fixture) {
    std::mt19937 random(21);
    for (const QuantizedSetting& quantized : settings()) {
      for (const std::int64_t m : {0, 1, 2, 3, 4, 7, 16, 17, 49, 100}) {
        for (const std::int64_t inputs : {65, 130, 576}) {
          const std::int64_t outputs[] = {0, 1, 3, 4, 18, 33, 70};
          Setting setting{
              .m = m, .outputs = outputs[random() % 7], .inputs = inputs, .type = dtype_of<T>};
          setting.quantized = quantized;
          setting.bias = random() % 2 == 0;
          setting.residual = random() % 2 == 0;
          setting.float_out = random() % 4 == 0;
          if (random() % 2 == 0) setting.x_gap = 3, setting.out_gap = 5;
          fixture.check(setting, random());
        }
      }
    }
  });
}

TEST_CASE("sums of quantized weights that are longer than a stretch, more rows than a block") {
  const auto backend = create_backend(DeviceKind::cpu);
  with_each_set(*backend, [&](Fixture& fixture) {
    for (const QuantizedSetting& quantized : settings()) {
      for (const DType type : {DType::f32, DType::bf16}) {
        Setting setting{.m = 20, .outputs = 17, .inputs = 2100, .type = type};
        setting.quantized = quantized;
        fixture.check(setting, 1);
        setting.m = 3;
        fixture.check(setting, 2);
        // Minutes under sanitizers.
        if (nvllm::testing::kSanitized && type != DType::bf16) continue;
        setting.m = 610, setting.inputs = 200;
        fixture.check(setting, 3);
      }
    }
  });
}

TEST_CASE("with quantized weights the number of threads changes no bit") {
  const auto backend = create_backend(DeviceKind::cpu);
  with_each_set(*backend, [&](Fixture& fixture) {
    for (const QuantizedSetting& quantized : settings()) {
      for (const std::int64_t m : {2, 70}) {
        Setting setting{.m = m, .outputs = 300, .inputs = 576, .type = DType::bf16};
        setting.quantized = quantized;
        GemmTensors tensors(*backend, setting, 6);
        const std::vector<char> shared = result_of(fixture, tensors);
        // Within a part of the pool's work there is no one left to help.
        std::vector<char> alone;
        nvllm::cpu::ThreadPool& pool = nvllm::cpu::stream(*fixture.stream).thread_pool();
        pool.run(pool.size(), [&](std::int64_t begin, std::int64_t) {
          if (begin == 0) alone = result_of(fixture, tensors);
        });
        CHECK(alone == shared);
      }
    }
  });
}

TEST_CASE("with quantized weights a row is the same alone and among up to 16") {
  const auto backend = create_backend(DeviceKind::cpu);
  with_each_set(*backend, [&](Fixture& fixture) {
    for (const QuantizedSetting& quantized : settings()) {
      Setting setting{.m = 16, .outputs = 40, .inputs = 576, .type = DType::bf16};
      setting.quantized = quantized;
      GemmTensors all(*backend, setting, 7);
      const std::vector<char> rows = result_of(fixture, all);
      const std::size_t row_bytes = rows.size() / 16;
      for (const std::int64_t m : {1, 2, 5, 7}) {
        GemmArguments some = all.arguments();
        some.operands.x.shape[0] = some.operands.out.shape[0] = m;
        const std::vector<char> few = result_of(fixture, all, some);
        CHECK(std::memcmp(few.data(), rows.data(), static_cast<std::size_t>(m) * row_bytes) == 0);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::kernels::testing
