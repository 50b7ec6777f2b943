// tree_sum: the order that merges say, one rounding, any number of columns, and what is refused.
#include <array>
#include <string>
#include <vector>

#include "kernels/pointwise/tree_sum.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

// ((0 + 1) + (2 + 3)) + 4 of blocks 5, 0, 3, 1 and 2.
constexpr int kCount = 5, kSumBlocks = 6;
constexpr std::array<std::uint8_t, TreeSum::kMaxSources> kBlock = {5, 0, 3, 1, 2};
constexpr std::array<std::uint8_t, TreeSum::kMaxSources> kMerges = {0, 1, 0, 2, 1};

// The same over 4 and 8 blocks, and of one.
struct Tree {
  int count;
  std::array<std::uint8_t, TreeSum::kMaxSources> blocks, merges;
};
constexpr Tree kTrees[] = {{kCount, kBlock, kMerges},
                           {1, {3}, {0}},
                           {2, {1, 0}, {0, 1}},
                           {4, {0, 1, 2, 3}, {0, 1, 0, 2}},
                           {4, {0, 1, 2, 3}, {0, 1, 1, 1}},
                           {8, {0, 1, 2, 3, 4, 5, 0, 1}, {0, 1, 0, 2, 0, 1, 0, 3}}};

// Element i of the sum that the tree describes, of blocks with `elements` elements each.
float sum_of(const Tree& tree, const std::vector<float>& sources, std::int64_t elements,
             std::int64_t i) {
  std::vector<float> stack;
  for (int source = 0; source < tree.count; ++source) {
    const auto s = static_cast<std::size_t>(source);
    stack.push_back(sources[static_cast<std::size_t>(tree.blocks[s] * elements + i)]);
    for (int merge = 0; merge < tree.merges[s]; ++merge) {
      const float right = stack.back();
      stack.pop_back();
      stack.back() += right;
    }
  }
  REQUIRE(stack.size() == 1);
  return stack.front();
}

template <typename T>
int wrong_elements(Backend& backend, const Tree& tree, std::int64_t rows, std::int64_t columns,
                   bool bias) {
  const auto stream = backend.create_stream();
  const std::int64_t elements = rows * columns;
  const std::vector<float> sources = testing::normal_values<float>(kSumBlocks * elements, 7);
  const std::vector<T> biases = testing::normal_values<T>(columns, 8);
  const testing::Placed<float> sources_there(backend, *stream, sources);
  const testing::Placed<T> biases_there(backend, *stream, biases);
  testing::Placed<T> out(backend, *stream, std::vector<T>(static_cast<std::size_t>(elements)));
  TreeSum args{.out = out.view({rows, columns}),
               .sources = sources_there.view({kSumBlocks * rows, columns}),
               .count = tree.count,
               .blocks = tree.blocks,
               .merges = tree.merges};
  if (bias) args.bias = biases_there.view({columns});
  tree_sum(args, *stream);
  const std::vector<T> got = out.fetch();
  int wrong = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    float sum = sum_of(tree, sources, elements, i);
    if (bias) sum += to_float(biases[static_cast<std::size_t>(i % columns)]);
    wrong += to_float(got[static_cast<std::size_t>(i)]) != to_float(from_float<T>(sum));
  }
  return wrong;
}

TEST_CASE_TEMPLATE("tree_sum adds in the order of its tree and rounds once", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const Tree& tree : kTrees) {
    CAPTURE(tree.count);
    for (const std::int64_t rows : {0, 1, 7, 300}) {
      for (const std::int64_t columns : {1, 8, 37, 64, 1000}) {
        for (const bool bias : {false, true}) {
          CHECK(wrong_elements<T>(*backend, tree, rows, columns, bias) == 0);
        }
      }
    }
  }
}

TEST_CASE("tree_sum refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const testing::Placed<float> placed(*backend, *stream, std::vector<float>(64));
  stream->synchronize();
  float* const memory = placed.data();
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
  stream->synchronize();  // the memory is freed before the stream
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
