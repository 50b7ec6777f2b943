// GEMMs that were tuned, and configurations that are handed on.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("after tuning, GEMMs are as right as before", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  Setting setting{.m = 70, .outputs = 96, .inputs = 128, .type = dtype_of<T>};
  setting.residual = true;
  {
    GemmTensors largest(*backend, setting, 40);
    largest.upload(*fixture.stream);
    fixture.tune(largest.arguments());
    largest.out.fetch(*fixture.stream);
    CHECK(largest.out.touched() == 0);
  }
  for (const std::int64_t m : {1, 16, 17, 32, 60, 64, 69, 70, 71}) {
    setting.m = m;
    fixture.check(setting, static_cast<unsigned>(m));
  }
}

// The bits of a GEMM's result.
std::vector<char> bits_of(Fixture& fixture, const Setting& setting) {
  GemmTensors tensors(fixture.backend, setting, 60);
  tensors.upload(*fixture.stream);
  fixture.run(tensors);
  tensors.out.fetch(*fixture.stream);
  CHECK(count_wrong(tensors, tensors.x.here, tensors.residual.here) == 0);
  const auto* data = tensors.out.here.as<char>();
  return {data, data + tensors.out.here.bytes()};
}

TEST_CASE_TEMPLATE("what one found by tuning another takes over, and measures nothing", T,
                   HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  Fixture first(*backend), second(*backend);
  std::vector<Setting> settings;
  for (const std::int64_t m : {16, 140, 170, 200}) {
    settings.push_back(
        {.m = m, .outputs = 256, .inputs = 384, .type = dtype_of<T>, .residual = true});
  }
  settings.push_back({.m = 16, .outputs = 16384, .inputs = 32, .type = dtype_of<T>});
  settings.back().float_out = true;
  for (const Setting& setting : settings) {
    GemmTensors one(*backend, setting, 61), other(*backend, setting, 62);
    one.upload(*first.stream);
    other.upload(*first.stream);
    const std::array alike = {first.call(one.arguments()), first.call(other.arguments())};
    first.gemm->tune(alike, *first.stream);
  }
  const GemmConfigurations found = first.gemm->configurations();
  CHECK(found.size() == (backend->kind() == DeviceKind::cuda ? 3 : 0));  // a small M needs none

  GemmConfigurations all = found;
  all["another machine: another GEMM"] = "id=1";
  second.gemm->adopt(all);
  CHECK(second.gemm->known() == found.size());
  for (Setting setting : settings) {
    const std::vector<char> expected = bits_of(first, setting);
    CHECK(bits_of(second, setting) == expected);
    GemmTensors one(*backend, setting, 63);
    one.upload(*second.stream);
    second.tune(one.arguments());
  }
  CHECK(second.gemm->configurations().empty());
}

TEST_CASE("what runs while a GEMM records is tuned afterwards, calls of one shape together") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  Setting setting{.m = 140, .outputs = 256, .inputs = 384, .type = DType::bf16, .residual = true};
  GemmTensors one(*backend, setting, 65), other(*backend, setting, 66);
  one.upload(*fixture.stream);
  other.upload(*fixture.stream);
  fixture.gemm->record();
  fixture.run(one);
  fixture.run(other);
  CHECK(fixture.gemm->configurations().empty());
  fixture.gemm->tune_recorded(*fixture.stream);
  const std::size_t found = fixture.gemm->configurations().size();
  CHECK(found == (backend->kind() == DeviceKind::cuda ? 1 : 0));
  setting.outputs = 512;  // is not recorded any more
  fixture.check(setting, 67);
  fixture.gemm->tune_recorded(*fixture.stream);
  CHECK(fixture.gemm->configurations().size() == found);
}

// Computes nothing; says how many calls were tuned together.
class RecordingGemm : public Gemm {
 public:
  explicit RecordingGemm(std::vector<std::size_t>& tuned) : tuned_(tuned) {}

 protected:
  GemmPlan make_plan(const GemmShape& shape) override {
    GemmPlan plan;
    plan.kernel = GemmKernel::dot;
    plan.prologue = shape.fusion.prologue;
    plan.epilogue = shape.fusion.epilogue;
    return plan;
  }
  void enqueue(const GemmCall& /*call*/, Stream& /*stream*/) override {}
  GroupedFusion fused_in(const GroupedGemm& /*grouped*/) override { return {}; }
  void enqueue_grouped(const GroupedGemm& /*grouped*/, Stream& /*stream*/) override {}
  void measure(std::span<const GemmCall> alike, Stream& /*stream*/) override {
    tuned_.push_back(alike.size());
  }

 private:
  std::vector<std::size_t>& tuned_;
};

TEST_CASE("weights of different formats are not tuned together, though all else is the same") {
  const auto backend = create_backend(DeviceKind::cpu);
  Fixture fixture(*backend);
  std::vector<std::size_t> tuned;
  fixture.gemm = std::make_unique<RecordingGemm>(tuned);
  const Setting floats{.m = 140, .outputs = 256, .inputs = 384, .type = DType::bf16};
  Setting fp8 = floats, int4 = floats, narrow = floats;
  fp8.quantized = {.format = WeightFormat::fp8, .group = 128};
  int4.quantized = {.format = WeightFormat::int4, .group = 128};
  narrow.quantized = {.format = WeightFormat::int4, .group = 64};
  fixture.gemm->record();
  std::vector<std::unique_ptr<GemmTensors>> tensors;
  for (const Setting& setting : {floats, fp8, int4, narrow, fp8, floats, fp8}) {
    tensors.push_back(std::make_unique<GemmTensors>(*backend, setting, 70));
    tensors.back()->upload(*fixture.stream);
    fixture.run(*tensors.back());
  }
  fixture.gemm->tune_recorded(*fixture.stream);
  std::ranges::sort(tuned);
  CHECK(tuned == std::vector<std::size_t>{1, 1, 2, 3});
}

TEST_CASE("configurations that are none, or of other shapes, do no harm") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture first(*backend);
  const Setting setting{.m = 192, .outputs = 1024, .inputs = 512, .type = DType::bf16};
  GemmTensors tensors(*backend, setting, 64);
  tensors.upload(*first.stream);
  first.tune(tensors.arguments());
  for (const std::string& bad :
       {std::string("nonsense"), std::string(),
        std::string("id=99999 tile=1 stages=1 splits=1 reduction=0 swizzle=0 custom=0 inner=0 "
                    "cluster=0"),
        std::string("id=66 tile=70000 stages=70000 splits=1 reduction=0 swizzle=0 custom=0 "
                    "inner=0 cluster=60"),
        std::string("id=6 tile=20 stages=1 splits=4 reduction=1 swizzle=0 custom=0 inner=0 "
                    "cluster=0")}) {
    Fixture second(*backend);
    GemmConfigurations found = first.gemm->configurations();
    for (auto& [key, configuration] : found) configuration = bad;
    second.gemm->adopt(found);
    bits_of(second, setting);
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
