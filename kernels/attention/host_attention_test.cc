// Tests attention on the host's cores: as the definition, for any type, heads and blocks; with
// equal bits for any number of threads and beside any other rows.
#include "kernels/attention/host_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/kv_view.h"
#include "kernels/attention/testing/references.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim, group, first_head = 0;
  std::int64_t block_tokens = 16;
  std::int64_t q_gap = 0;  // elements between rows of q
};

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result&) const = default;
};

// Rows, each with its blocks, which lie in any order, with something before the keys and between
// keys and values.
template <typename T>
class Case {
 public:
  Case(const Shape& shape, std::vector<std::int64_t> blocks_of_rows, unsigned seed)
      : shape_(shape), counts_(std::move(blocks_of_rows)), bits_(seed) {
    q_ = random((shape.heads * shape.head_dim + shape.q_gap) * rows(), 1.0f);
    std::int64_t count = 0;
    for (const std::int64_t blocks : counts_) count += blocks;
    memory_ = random(count * block_elements(), 1.5f);
    for (std::int64_t row = 0, next = 0; row < rows(); ++row) {
      for (std::int64_t i = 0; i < counts_[static_cast<std::size_t>(row)]; ++i, ++next) {
        blocks_.push_back({static_cast<std::int32_t>(row), (next * 7 + 3) % count});
      }
    }
    // 7 does not divide the count, so that no block is met twice.
    REQUIRE(count % 7 != 0);
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(counts_.size()); }

  Result run(int threads) {
    std::vector<HostAttentionBlock> blocks;
    for (const BlockOfRow& each : blocks_) {
      blocks.push_back({each.row, reinterpret_cast<const unsigned char*>(
                                      memory_.data() + each.block * block_elements())});
    }
    Result result = empty();
    HostAttention args;
    args.out = TensorView(result.out.data(), DType::f32, {rows(), shape_.heads, shape_.head_dim});
    args.lse = TensorView(result.lse.data(), DType::f32, {rows(), shape_.heads});
    args.q = q_view();
    args.blocks = blocks;
    args.keys = kBefore * static_cast<std::int64_t>(sizeof(T));
    args.values = (2 * kBefore + half()) * static_cast<std::int64_t>(sizeof(T));
    args.block_tokens = shape_.block_tokens;
    args.kv_heads = shape_.kv_heads;
    args.group = shape_.group;
    args.first_head = shape_.first_head;
    args.scale = scale();
    cpu::ThreadPool pool(threads);
    std::vector<float> scratch(3, std::numeric_limits<float>::quiet_NaN());
    host_attention(args, pool, scratch);
    return result;
  }

  // The definition, for each row by itself.
  Result expected() {
    Result result = empty();
    for (std::int64_t row = 0; row < rows(); ++row) {
      std::vector<T> keys, values;
      for (const BlockOfRow& each : blocks_) {
        if (each.row != row) continue;
        const T* const block = memory_.data() + each.block * block_elements() + kBefore;
        keys.insert(keys.end(), block, block + half());
        values.insert(values.end(), block + half() + kBefore, block + 2 * half() + kBefore);
      }
      reference(row, keys, values, result);
    }
    return result;
  }

  // How many results are further from the expected ones than float32's roundings of a score, which
  // is at most |q| |k| scale, and of the sum of the weights explain (testing/attention_case.h).
  int count_wrong(const Result& got) {
    const Result right = expected();
    const float score = longest(q_) * longest(memory_) * scale();
    const float of_lse = (16 * score + 32) * 0x1p-24f;
    float largest = 0;
    for (const T value : memory_) largest = std::max(largest, std::fabs(to_float(value)));
    int wrong = 0;
    for (std::size_t i = 0; i < right.out.size(); ++i) {
      wrong += !(std::fabs(got.out[i] - right.out[i]) <= largest * of_lse);
    }
    for (std::size_t i = 0; i < right.lse.size(); ++i) {
      wrong += std::isinf(right.lse[i]) ? got.lse[i] != right.lse[i]
                                        : !(std::fabs(got.lse[i] - right.lse[i]) <= of_lse);
    }
    return wrong;
  }

  // Another row's queries.
  void change_query(std::int64_t row) {
    const std::int64_t stride = shape_.heads * shape_.head_dim + shape_.q_gap;
    std::fill_n(q_.begin() + row * stride, shape_.heads * shape_.head_dim, from_float<T>(0.25f));
  }

 private:
  struct BlockOfRow {
    std::int32_t row;
    std::int64_t block;
  };
  static constexpr std::int64_t kBefore = 32;  // elements

  std::int64_t half() const { return shape_.block_tokens * shape_.kv_heads * shape_.head_dim; }
  std::int64_t block_elements() const { return 2 * (kBefore + half()); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }

  std::vector<T> random(std::int64_t count, float size) {
    std::normal_distribution<float> normal;
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) value = from_float<T>(size * normal(bits_));
    return values;
  }

  Result empty() const {
    Result result;
    result.out.assign(static_cast<std::size_t>(rows() * shape_.heads * shape_.head_dim), -77);
    result.lse.assign(static_cast<std::size_t>(rows() * shape_.heads), -77);
    return result;
  }

  TensorView q_view() {
    TensorView q(q_.data(), dtype_of<T>, {rows(), shape_.heads, shape_.head_dim});
    q.stride[0] += shape_.q_gap;
    return q;
  }

  void reference(std::int64_t row, std::vector<T>& keys, std::vector<T>& values, Result& result) {
    const std::int64_t tokens =
        static_cast<std::int64_t>(keys.size()) / (shape_.kv_heads * shape_.head_dim);
    if (tokens == 0) {
      std::fill_n(result.out.begin() + row * shape_.heads * shape_.head_dim,
                  shape_.heads * shape_.head_dim, 0.0f);
      std::fill_n(result.lse.begin() + row * shape_.heads, shape_.heads,
                  -std::numeric_limits<float>::infinity());
      return;
    }
    Attention args;
    args.q = q_view().rows(row, 1);
    args.out = TensorView(result.out.data(), DType::f32, {rows(), shape_.heads, shape_.head_dim})
                   .rows(row, 1);
    args.lse = TensorView(result.lse.data(), DType::f32, {rows(), shape_.heads}).rows(row, 1);
    args.kv.keys =
        TensorView(keys.data(), dtype_of<T>, {1, tokens, shape_.kv_heads, shape_.head_dim});
    args.kv.values =
        TensorView(values.data(), dtype_of<T>, {1, tokens, shape_.kv_heads, shape_.head_dim});
    std::int32_t starts[] = {0, 1}, length = static_cast<std::int32_t>(tokens);
    args.query_start = TensorView(starts, DType::i32, {2});
    args.kv_length = TensorView(&length, DType::i32, {1});
    args.group = shape_.group;
    args.first_head = shape_.first_head;
    args.scale = scale();
    args.max_query_rows = 1;
    args.max_kv_length = tokens;
    attention_reference(args);
  }

  float longest(const std::vector<T>& x) const {
    const std::int64_t head_dim = shape_.head_dim;
    double max_norm = 0;
    for (std::int64_t i = 0; i + head_dim <= static_cast<std::int64_t>(x.size()); i += 8) {
      double sum = 0;
      for (std::int64_t d = i; d < i + head_dim; ++d) {
        sum += double{to_float(x[static_cast<std::size_t>(d)])} *
               to_float(x[static_cast<std::size_t>(d)]);
      }
      max_norm = std::max(max_norm, sum);
    }
    return static_cast<float>(std::sqrt(max_norm));
  }

  Shape shape_;
  std::vector<std::int64_t> counts_;
  std::mt19937 bits_;
  std::vector<T> q_, memory_;
  std::vector<BlockOfRow> blocks_;
};

const Shape kShapes[] = {
    {8, 2, 64, 4},             // whole groups
    {9, 3, 64, 3, 0, 48, 24},  // rows of q apart
    {5, 3, 32, 3, 2, 16},      // begins in the middle of a group
    {1, 1, 128, 1, 0, 700},    // a block of two pieces, the second one short
    {70, 1, 40, 70, 0, 20},    // more heads in a group than are worked on at once
    {67, 2, 16, 68, 3, 1100},  // and both
};

TEST_CASE_TEMPLATE("host attention is attention to the blocks of each row", T, float, Bf16, F16) {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.heads);
    CAPTURE(shape.block_tokens);
    Case<T> each(shape, {3, 0, 1, 5, 0}, 1);
    CHECK(each.count_wrong(each.run(2)) == 0);
  }
}

TEST_CASE("host attention without any block is nothing") {
  Case<float> each(kShapes[0], {0, 1, 0}, 1);
  const Result got = each.run(1);
  CHECK(got.lse.front() == -std::numeric_limits<float>::infinity());
  CHECK(got.out.front() == 0);
}

TEST_CASE("host attention: no bit depends on the number of threads") {
  for (const Shape& shape : kShapes) {
    Case<Bf16> each(shape, {3, 0, 1, 5, 0}, 2);
    const Result one = each.run(1);
    for (const int threads : {2, 3, 5}) CHECK(each.run(threads) == one);
  }
}

TEST_CASE("host attention: no bit of a row depends on another row") {
  const Shape& shape = kShapes[1];
  Case<float> each(shape, {3, 2}, 3);
  Result before = each.run(2);
  each.change_query(1);
  Result after = each.run(2);
  CHECK(before != after);
  const auto first = static_cast<std::size_t>(shape.heads * shape.head_dim);
  before.out.resize(first), after.out.resize(first);
  before.lse.resize(static_cast<std::size_t>(shape.heads));
  after.lse.resize(static_cast<std::size_t>(shape.heads));
  CHECK(before == after);
}

}  // namespace
}  // namespace nvllm::kernels
