// tree_sum: the order that merges say, one rounding, any number of columns, and what is refused.
#include "kernels/pointwise/tree_sum.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "device/dtype.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

// ((0 + 1) + (2 + 3)) + 4 of blocks 5, 0, 3, 1 and 2.
constexpr int kCount = 5, kBlocks = 6;
constexpr std::array<std::uint8_t, TreeSum::kMaxSources> kBlock = {5, 0, 3, 1, 2};
constexpr std::array<std::uint8_t, TreeSum::kMaxSources> kMerges = {0, 1, 0, 2, 1};

template <typename T>
int wrong_elements(std::int64_t rows, std::int64_t columns, bool bias) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> sources(kBlocks * rows * columns);
  for (float& value : sources) value = normal(random);
  std::vector<T> biases(columns), out(rows * columns);
  for (T& value : biases) value = from_float<T>(normal(random));
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  TreeSum args{.out = {out.data(), dtype_of<T>, {rows, columns}},
               .sources = {sources.data(), DType::f32, {kBlocks * rows, columns}},
               .count = kCount,
               .blocks = kBlock,
               .merges = kMerges};
  if (bias) args.bias = {biases.data(), dtype_of<T>, {columns}};
  tree_sum(args, *stream);
  stream->synchronize();
  int wrong = 0;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const auto at = [&](int source) {
      return sources[static_cast<std::size_t>(kBlock[source] * rows * columns + i)];
    };
    float sum = ((at(0) + at(1)) + (at(2) + at(3))) + at(4);
    if (bias) sum += to_float(biases[static_cast<std::size_t>(i % columns)]);
    wrong += to_float(out[static_cast<std::size_t>(i)]) != to_float(from_float<T>(sum));
  }
  return wrong;
}

TEST_CASE_TEMPLATE("a sum is taken in the order of its merges, and rounded once", T, float, Bf16,
                   F16) {
  for (const std::int64_t columns : {1, 7, 8, 40, 333}) {
    for (const std::int64_t rows : {1, 3, 70}) {
      for (const bool bias : {false, true}) {
        CHECK(wrong_elements<T>(rows, columns, bias) == 0);
      }
    }
  }
}

TEST_CASE("tree_sum refuses what does not fit, by name") {
  float memory[64] = {};
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto refusal = [&](const auto& change) {
    TreeSum args{.out = {memory, DType::f32, {2, 3}},
                 .sources = {memory, DType::f32, {4, 3}},
                 .count = 2,
                 .blocks = {0, 1},
                 .merges = {0, 1}};
    change(args);
    try {
      tree_sum(args, *stream);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal([](TreeSum&) {}).empty());
  CHECK(refusal([](TreeSum& a) { a.count = 0; }) == "tree_sum: count is 0; it must be 1 to 8");
  CHECK(refusal([](TreeSum& a) {
          a.merges = {0, 0};
        }) == "tree_sum: merges do not leave one of 2 sources");
  CHECK(refusal([](TreeSum& a) {
          a.merges = {1, 0};
        }) == "tree_sum: merges do not leave one of 2 sources");
  CHECK(refusal([](TreeSum& a) {
          a.blocks = {0, 2};
        }) == "tree_sum: block 2 of 2 rows is not in sources float32 [4, 3]");
  CHECK(
      refusal([](TreeSum& a) { a.sources.dtype = DType::bf16; }).starts_with("tree_sum: sources"));
  CHECK(refusal([&](TreeSum& a) {
          a.bias = {memory, DType::f32, {2}};
        }).starts_with("tree_sum: bias"));
}

}  // namespace
}  // namespace nvllm::kernels
