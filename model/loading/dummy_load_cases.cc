// What --load-format dummy guarantees, on whichever backend is linked.
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "device/testing/backend_under_test.h"
#include "model/loading/loader.h"
#include "model/loading/loader_fixture.h"

namespace nvllm::model {
namespace {

using Tensors = std::map<std::string, std::vector<std::byte>>;

constexpr float kDeviation = 0.02f;

// All tensors of the decoder, from `ranks` ranks.
Tensors dummy_tensors(Backend& backend, int ranks, DType dtype, std::uint64_t seed = 1) {
  Assembly assembly;
  for (int rank = 0; rank < ranks; ++rank) {
    TestParameters model = decoder_of({rank, ranks});
    model.bind(backend, dtype);
    const LoadReport report = load_dummy(model.parameters(), backend, kDeviation, seed);
    CHECK(report.bytes_read == 0);
    CHECK(report.bytes_loaded == bytes_of(model.parameters(), dtype).used);
    assembly.add(model, dtype);
  }
  CHECK(assembly.disagreements() == 0);
  return assembly.tensors();
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  double sum = 0, squares = 0;
  for (const float value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const float value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / static_cast<double>(values.size()))};
}

TEST_CASE("random weights are the same on 1, 3 and 4 ranks, in every type") {
  BACKEND_OR_SKIP(backend);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensors whole = dummy_tensors(*backend, 1, dtype);
    CHECK(whole.size() == 10);
    for (const int ranks : {3, 4}) {
      CAPTURE(ranks);
      CHECK(dummy_tensors(*backend, ranks, dtype) == whole);
    }
  }
}

TEST_CASE("random weights are the same bits on this device and on the CPU") {
  BACKEND_OR_SKIP(backend);
  const auto cpu = create_backend(DeviceKind::cpu);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CHECK(dummy_tensors(*backend, 1, dtype) == dummy_tensors(*cpu, 1, dtype));
  }
}

TEST_CASE("norm weights are about 1, everything else about 0") {
  BACKEND_OR_SKIP(backend);
  const auto tensors = dummy_tensors(*backend, 1, DType::f32);
  for (const auto& tensor : tensors) {
    const std::string& name = tensor.first;
    const auto& values = tensor.second;
    CAPTURE(name);
    const Moments found = moments(values);
    // The standard errors of the two for an even distribution are 1 and sqrt(1/5) of this; 5 of
    // them.
    const double error = 5 * kDeviation / std::sqrt(static_cast<double>(values.size()) / 4);
    CHECK(std::fabs(found.mean - (name == "norm.weight" ? 1 : 0)) < error);
    CHECK(std::fabs(found.deviation - kDeviation) < error);
  }
}

TEST_CASE("tensors and seeds have values of their own") {
  BACKEND_OR_SKIP(backend);
  const Tensors one = dummy_tensors(*backend, 1, DType::f32, 1);
  const Tensors other = dummy_tensors(*backend, 1, DType::f32, 2);
  CHECK(one.at("k") != one.at("v"));
  CHECK(one.at("gate") != one.at("up"));
  CHECK(one.at("q") != other.at("q"));
}

}  // namespace
}  // namespace nvllm::model
