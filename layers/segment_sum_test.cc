// SegmentSum: which nodes of the tree a rank owns, their order of addition, and that the sum has
// the same bits however the segments are divided among ranks.
#include "layers/segment_sum.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/text.h"
#include "layers/linear.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {
namespace {

// "0-3 4-5": the nodes of a range.
std::string nodes_as_text(Range own, std::int64_t segments) {
  std::string text;
  for (const Range node : tree_nodes_of(own, segments)) {
    text += str(text.empty() ? "" : " ", node.begin, '-', node.end - 1);
  }
  return text;
}

TEST_CASE("a rank has the largest nodes within its segments") {
  CHECK(nodes_as_text({0, 8}, 8) == "0-7");
  CHECK(nodes_as_text({0, 4}, 8) == "0-3");
  CHECK(nodes_as_text({0, 3}, 8) == "0-1 2-2");
  CHECK(nodes_as_text({3, 6}, 8) == "3-3 4-5");
  CHECK(nodes_as_text({6, 8}, 8) == "6-7");
  CHECK(nodes_as_text({1, 7}, 8) == "1-1 2-3 4-5 6-6");
  CHECK(nodes_as_text({4, 7}, 7) == "4-6");  // the node of segments 4 to 7, where 7 does not exist
  CHECK(nodes_as_text({2, 3}, 3) == "2-2");
  CHECK(nodes_as_text({0, 1}, 1) == "0-0");
  CHECK(nodes_as_text({2, 2}, 8).empty());
}

// What tree_sum() would compute from these sources, as text.
std::string added(const kernels::TreeSum& sum, const std::vector<std::string>& sources) {
  std::vector<std::string> stack;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    stack.push_back(sources[i]);
    for (int merge = 0; merge < sum.merges[i]; ++merge) {
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = str('(', stack.back(), '+', right, ')');
    }
  }
  REQUIRE(stack.size() == 1);
  return stack.front();
}

// The sum of a node's leaves.
std::string node_as_text(Range node, std::int64_t segments) {
  std::vector<Range> leaves;
  std::vector<std::string> names;
  for (std::int64_t n = node.begin; n < node.end; ++n) {
    leaves.push_back({n, n + 1});
    names.push_back(str(n));
  }
  return added(tree_sum_of(leaves, segments), names);
}

TEST_CASE("the tree is aligned, and what is beyond the last segment is left out") {
  CHECK(node_as_text({0, 8}, 8) == "(((0+1)+(2+3))+((4+5)+(6+7)))");
  CHECK(node_as_text({0, 7}, 7) == "(((0+1)+(2+3))+((4+5)+6))");
  CHECK(node_as_text({0, 6}, 6) == "(((0+1)+(2+3))+(4+5))");
  CHECK(node_as_text({0, 5}, 5) == "(((0+1)+(2+3))+4)");
  CHECK(node_as_text({0, 3}, 3) == "((0+1)+2)");
  CHECK(node_as_text({0, 1}, 1) == "0");
  CHECK(node_as_text({4, 6}, 8) == "(4+5)");
}

// The sum of the ranks' nodes.
std::string cut_as_text(const std::vector<std::int64_t>& cuts, std::int64_t segments) {
  std::vector<Range> nodes;
  std::vector<std::string> names;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    for (const Range node : tree_nodes_of({cuts[i], cuts[i + 1]}, segments)) {
      nodes.push_back(node);
      names.push_back(node_as_text(node, segments));
    }
  }
  return added(tree_sum_of(nodes, segments), names);
}

TEST_CASE("every division of 1 to 8 segments into neighbouring parts adds up in one order") {
  int divisions = 0;
  for (std::int64_t segments = 1; segments <= kMaxSegments; ++segments) {
    const std::string one = node_as_text({0, segments}, segments);
    for (std::uint32_t cut = 0; cut < 1u << (segments - 1); ++cut) {  // a bit for each border
      std::vector<std::int64_t> cuts = {0};
      for (std::int64_t n = 1; n < segments; ++n) {
        if (cut >> (n - 1) & 1) cuts.push_back(n);
      }
      cuts.push_back(segments);
      CHECK(cut_as_text(cuts, segments) == one);
      ++divisions;
    }
  }
  CHECK(divisions == 255);
}

TEST_CASE("a row-parallel layer has the same bits with any number of ranks, with its bias") {
  struct Shape {
    std::int64_t rows, outputs, inputs;
    bool bias;
  };
  on_groups([](LayerRank& rank) {
    // 300 rows: more than are processed at once; 8, 5, 7 and 1 segments; ranks without segments.
    for (const Shape& shape : {Shape{300, 40, 256, false}, Shape{5, 96, 80, true},
                               Shape{3, 37, 777, true}, Shape{2, 16, 13, true}}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto result_of = [&](Shard shard, const Context& context) {
          const Range own = shard_range(shape.inputs, shard);
          RowParallelLinear layer("row", "test.proj", shape.outputs, shape.inputs, own, shape.bias,
                                  shard, segments_of_parts(shape.inputs));
          rank.bind(layer, dtype);
          std::vector<float> x;
          for (std::int64_t row = 0; row < shape.rows; ++row) {
            for (std::int64_t i = own.begin; i < own.end; ++i) {
              x.push_back(noise("x", row * shape.inputs + i, 1.7f));
            }
          }
          const TensorView out = rank.empty(dtype, shape.rows, shape.outputs);
          layer.forward(out, rank.tensor(x, dtype, shape.rows, own.size()), context);
          return rank.values(out);
        };
        Shard shard = rank.shard();
        shard.tp_invariant = true;
        const auto together = result_of(shard, rank.together());
        const auto alone = result_of({.tp_invariant = true}, rank.alone());
        CHECK((together == alone));
        // Close to the result of one GEMM, but summed in another order.
        const auto plain = result_of({}, rank.alone());
        CHECK(difference(together, plain, dtype, {.roundings = 2, .length = shape.inputs}) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
