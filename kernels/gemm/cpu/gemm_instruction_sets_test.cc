// GEMMs on the CPU with each instruction set that this machine has, at the edges of their
// vectors, groups, panels, blocks and stretches.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/cpu/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using cpu::InstructionSet;

// Random tensors of one GEMM. Rows of x, out and residual lie an odd number of elements apart,
// and all begin one element after an aligned address.
template <typename T>
struct Problem {
  std::int64_t rows, outputs, inputs;
  std::vector<T> x, weight, bias, residual;

  Problem(std::int64_t rows, std::int64_t outputs, std::int64_t inputs)
      : rows(rows), outputs(outputs), inputs(inputs) {
    std::mt19937 bits(static_cast<unsigned>(rows * 10007 + outputs * 101 + inputs));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<T>& values, std::int64_t count) {
      for (std::int64_t i = 0; i <= count; ++i) values.push_back(from_float<T>(normal(bits)));
    };
    fill(x, rows * x_stride());
    fill(weight, outputs * inputs);
    fill(bias, outputs);
    fill(residual, rows * out_stride());
  }

  std::int64_t x_stride() const { return inputs | 1; }
  std::int64_t out_stride() const { return outputs + 3; }
  std::int64_t out_elements() const { return rows * out_stride() + 1; }

  // `out`: out_elements() floats.
  GemmCall call(Gemm& gemm, float* out) { return gemm.call(gemm_weight(), operands(out)); }

  // How many sums are further from the definition than the rounding of each addition explains. An
  // error of n additions in a row is below n * 2^-24 of the sum of magnitudes, and half of it is
  // typical for none.
  int count_wrong(const std::vector<float>& got) {
    std::vector<float> right(out_elements(), kUntouched);
    GemmCall reference;
    reference.weight = gemm_weight();
    reference.operands = operands(right.data());
    reference.plan.shape = shape_of(reference.weight, reference.operands);
    gemm_reference(reference);
    int wrong = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t output = 0; output < outputs; ++output) {
        const float bound = magnitude(row, output) * static_cast<float>(inputs + 3) * 0x1p-24f;
        const std::int64_t at = 1 + row * out_stride() + output;
        wrong += !(std::fabs(got[at] - right[at]) <= bound);
        if (output == 0) wrong += got[at - 1] != kUntouched;
      }
    }
    return wrong;
  }

  static constexpr float kUntouched = -77;

 private:
  GemmWeight gemm_weight() {
    return {.values = TensorView(weight.data() + 1, dtype_of<T>, {outputs, inputs}),
            .bias = TensorView(bias.data() + 1, dtype_of<T>, {outputs})};
  }
  GemmOperands operands(float* out) {
    return {.out = strided(out, DType::f32, outputs, out_stride()),
            .x = strided(x.data(), dtype_of<T>, inputs, x_stride()),
            .residual = strided(residual.data(), dtype_of<T>, outputs, out_stride())};
  }

  template <typename E>
  TensorView strided(E* data, DType type, std::int64_t columns, std::int64_t stride) const {
    TensorView view(data + 1, type, {rows, columns});
    view.stride[0] = stride;
    return view;
  }

  float magnitude(std::int64_t row, std::int64_t output) const {
    float sum = std::fabs(to_float(bias[1 + output])) +
                std::fabs(to_float(residual[1 + row * out_stride() + output]));
    for (std::int64_t i = 0; i < inputs; ++i) {
      sum += std::fabs(to_float(x[1 + row * x_stride() + i]) *
                       to_float(weight[1 + output * inputs + i]));
    }
    return sum;
  }
};

template <typename T>
std::vector<float> run(Problem<T>& problem, InstructionSet set, Backend& backend) {
  const auto gemm = cpu::create_gemm(backend, set);
  const auto stream = backend.create_stream();
  std::vector<float> out(problem.out_elements(), Problem<T>::kUntouched);
  gemm->run(problem.call(*gemm, out.data()), *stream);
  stream->synchronize();
  return out;
}

template <typename T>
void check(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  const auto backend = create_backend(DeviceKind::cpu);
  Problem<T> problem(rows, outputs, inputs);
  for (const InstructionSet set : cpu::instruction_sets()) {
    const std::string name = cpu::name_of(set);
    CAPTURE(name);
    CAPTURE(rows);
    CAPTURE(outputs);
    CAPTURE(inputs);
    CHECK(problem.count_wrong(run(problem, set, *backend)) == 0);
  }
}

TEST_CASE_TEMPLATE("every number of rows", T, FLOAT_TYPES) {
  for (const std::int64_t rows :
       {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 96, 97, 100}) {
    check<T>(rows, 37, 45);
  }
}

TEST_CASE_TEMPLATE("every length of a sum", T, FLOAT_TYPES) {
  for (const std::int64_t inputs : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127}) {
    for (const std::int64_t rows : {1, 5, 16, 20}) check<T>(rows, 19, inputs);
  }
}

TEST_CASE_TEMPLATE("every number of outputs", T, FLOAT_TYPES) {
  for (const std::int64_t outputs : {0, 1, 3, 4, 5, 8, 15, 16, 17, 32, 33, 63, 64, 65, 129, 200}) {
    for (const std::int64_t rows : {1, 3, 16, 33}) check<T>(rows, outputs, 23);
  }
}

TEST_CASE_TEMPLATE("sums longer than a stretch", T, FLOAT_TYPES) {
  check<T>(20, 17, 1023);
  check<T>(20, 17, 2049);
  check<T>(2, 5, 4099);
}

TEST_CASE_TEMPLATE("more rows and outputs than a block", T, FLOAT_TYPES) {
  check<T>(512, 130, 33);
  check<T>(1201, 70, 40);
}

TEST_CASE_TEMPLATE("the number of threads changes no bit", T, FLOAT_TYPES) {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const InstructionSet set : cpu::instruction_sets()) {
    const std::string name = cpu::name_of(set);
    CAPTURE(name);
    for (const std::int64_t rows : {2, 100}) {
      Problem<T> problem(rows, 300, 200);
      const std::vector<float> shared = run(problem, set, *backend);
      // Within a part of the pool's work there is no one left to help.
      std::vector<float> alone;
      const auto stream = backend->create_stream();
      nvllm::cpu::ThreadPool& pool = nvllm::cpu::stream(*stream).thread_pool();
      pool.run(pool.size(), [&](std::int64_t begin, std::int64_t) {
        if (begin == 0) alone = run(problem, set, *backend);
      });
      REQUIRE(alone.size() == shared.size());
      CHECK(std::memcmp(alone.data(), shared.data(), alone.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("the workspace is allocated at the first call that needs it, or by tune()") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = cpu::create_gemm(*backend);
  Problem<Bf16> few(3, 20, 64), many(200, 20, 64);
  std::vector<float> out(many.out_elements());
  CHECK(backend->ledger().total(MemoryKind::device) == 0);
  const GemmCall largest = many.call(*gemm, out.data());
  gemm->tune(std::span(&largest, 1), *stream);
  const std::size_t held = backend->ledger().total(MemoryKind::device);
  CHECK(held >= 200 * 64 * sizeof(Bf16));
  gemm->run(few.call(*gemm, out.data()), *stream);
  gemm->run(largest, *stream);
  stream->synchronize();
  CHECK(backend->ledger().total(MemoryKind::device) == held);
}

TEST_CASE("instruction sets come in order, from the baseline on") {
  const std::vector<InstructionSet> sets = cpu::instruction_sets();
  REQUIRE(!sets.empty());
  for (std::size_t i = 0; i < sets.size(); ++i) CHECK(sets[i] == static_cast<InstructionSet>(i));
}

}  // namespace
}  // namespace nvllm::kernels
