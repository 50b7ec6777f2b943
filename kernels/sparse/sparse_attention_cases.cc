// Tests sparse attention against its definition and against attention to all tokens, on whichever
// backend is linked.
#include "kernels/sparse/testing/sparse_case.h"

namespace nvllm::kernels::testing {
namespace {

template <typename T, typename Kv>
void check_sparse(Backend& backend, const SparseCase<T, Kv>& input) {
  SparseCase<T, Kv> got = input, expected = input;
  got.run(backend);
  expected.run(*create_backend(DeviceKind::cpu), true);
  CHECK(count_wrong(got.dense, expected.dense) == 0);
}

AttentionShape some_shape(std::mt19937& random, std::int64_t head_dim) {
  const auto rows = static_cast<std::int64_t>(1 + random() % 300);
  const auto before = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 500);
  AttentionShape shape =
      whole_groups({{rows, before + rows}}, 1 + random() % 2, 1 + random() % 3, head_dim,
                   std::vector<std::int64_t>{0, 16, 48, 128, 256}[random() % 5]);
  if (shape.group > 1 && random() % 3 == 0) {
    shape.first_head = 1;
    shape.heads -= 1;
  }
  return shape;
}

std::int64_t row_blocks(const AttentionShape& shape) {
  return (shape.sequences[0].rows + kSparseTile - 1) / kSparseTile;
}

TEST_CASE_TEMPLATE("rows attend to the chosen tiles only", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(21);
  for (const std::int64_t head_dim : {64, 128, 64, 128, 80, 256}) {
    const AttentionShape shape = some_shape(random, head_dim);
    SparseCase<T> c{
        AttentionCase<T>::random(shape, random()),
        random_tiles(random, row_blocks(shape) * shape.heads, shape.sequences[0].tokens)};
    c.dense.q_gap = random() % 2 * 64;
    c.dense.as_float = random() % 2 == 0;
    CAPTURE(head_dim);
    CAPTURE(c.rows());
    CAPTURE(c.tokens());
    check_sparse(*backend, c);
  }
}

TEST_CASE_TEMPLATE("rows attend to the chosen ranges and columns only", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(22);
  for (const std::int64_t head_dim : {64, 128, 64, 128, 80, 256}) {
    const AttentionShape shape = some_shape(random, head_dim);
    SparseCase<T> c{
        AttentionCase<T>::random(shape, random()),
        random_ranges(random, row_blocks(shape) * shape.heads, shape.sequences[0].tokens)};
    c.dense.q_gap = random() % 2 * 64;
    CAPTURE(head_dim);
    CAPTURE(c.rows());
    CAPTURE(c.tokens());
    check_sparse(*backend, c);
  }
}

TEST_CASE_TEMPLATE("the cache may be in E4m3, with and without scales", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(24);
  for (const std::int64_t head_dim : {64, 128, 80, 256}) {
    for (const bool tiled : {true, false}) {
      const AttentionShape shape = some_shape(random, head_dim);
      const std::int64_t lists = row_blocks(shape) * shape.heads;
      const std::int64_t tokens = shape.sequences[0].tokens;
      SparseCase<T, E4m3> c{
          AttentionCase<T, E4m3>::random(shape, random()),
          tiled ? random_tiles(random, lists, tokens) : random_ranges(random, lists, tokens)};
      c.dense.q_gap = random() % 2 * 64;
      c.dense.as_float = random() % 2 == 0;
      CAPTURE(head_dim);
      CAPTURE(tiled);
      CAPTURE(c.rows());
      CAPTURE(c.tokens());
      check_sparse(*backend, c);
      for (std::int64_t i = 0; i < 2 * shape.kv_heads; ++i)
        c.dense.kv_scales.push_back(0.25f + 0.3f * static_cast<float>(i % 5));
      check_sparse(*backend, c);
    }
  }
}

// As MInference has them: a range that ends with the rows, ranges of some hundred tokens and
// columns between them.
SparseLists lines_of_prompt(std::mt19937& random, const AttentionShape& shape) {
  SparseLists lines;
  const std::int64_t rows = shape.sequences[0].rows, tokens = shape.sequences[0].tokens;
  for (std::int64_t i = 0; i < row_blocks(shape) * shape.heads; ++i) {
    auto& ranges = lines.ranges.emplace_back();
    auto& columns = lines.columns.emplace_back();
    const std::int64_t last = (i / shape.heads + 1) * kSparseTile;
    const auto end = static_cast<std::int32_t>(tokens - rows + std::min(rows, last));
    const auto band = std::max(0, end - static_cast<std::int32_t>(200 + random() % 400));
    const unsigned one_in = random() % 2 == 0 ? 50 : 3;  // so that columns fill several tiles, too
    for (std::int32_t t = 0; t < band; ++t) {
      const auto length = static_cast<std::int32_t>(128 + random() % 200);
      if (random() % 300 == 0 && t + length < band) {
        ranges.emplace_back(t, t + length);
        t += length;
      } else if (random() % one_in == 0) {
        columns.push_back(t);
      }
    }
    ranges.emplace_back(band, end);
  }
  return lines;
}

TEST_CASE_TEMPLATE("rows attend to bands and columns of a long prompt", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(27);
  for (const std::int64_t head_dim : {64, 128, 128}) {
    const std::int64_t rows = 130 + random() % 200;
    const std::int64_t min_length = nvllm::testing::kSanitized ? 1000 : 2000;
    const AttentionShape shape =
        whole_groups({{rows, min_length + static_cast<std::int64_t>(random() % 500)}}, 2, 2,
                     head_dim, head_dim == 64 ? 48 : 16);
    SparseCase<T> c{AttentionCase<T>::random(shape, random()), lines_of_prompt(random, shape)};
    c.dense.as_float = random() % 2 == 0;
    CAPTURE(head_dim);
    CAPTURE(rows);
    check_sparse(*backend, c);
  }
}

TEST_CASE_TEMPLATE("all tiles, or one range of all tokens, are attention itself", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const AttentionShape shape = whole_groups({{200, 333}}, 2, 2, 64);
  AttentionCase<T> whole = AttentionCase<T>::random(shape, 23);
  whole.run(*backend);
  std::vector<float> out;
  for (const T value : whole.out) out.push_back(to_float(value));
  SparseLists tiles, ranges;
  tiles.tiles.assign(2 * 4, {0, 1, 2});
  ranges.ranges.assign(2 * 4, {{0, 333}});
  ranges.columns.assign(2 * 4, {});
  for (const SparseLists& lists : {tiles, ranges}) {
    SparseCase<T> c{whole, lists};
    c.run(*backend);
    CHECK(count_wrong(c.dense, out, whole.lse, true) == 0);
  }
}

TEST_CASE_TEMPLATE("tokens that are not chosen may be anything", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  // Rows 300 to 399 of 400 tokens, two heads of one KV head; tile 1 and the columns beside the
  // range are NaN.
  const AttentionShape shape = whole_groups({{100, 400}}, 1, 2, 64);
  for (const bool tiled : {true, false}) {
    SparseCase<T> c{AttentionCase<T>::random(shape, 24), {}};
    if (tiled) {
      c.lists.tiles = {{0, 2, 3}, {2}};
    } else {
      c.lists.ranges.assign(2, {{0, 128}, {256, 400}});
      c.lists.columns.assign(2, {});
    }
    std::fill_n(c.dense.k.begin() + 128 * 64, 128 * 64, from_float<T>(kNan));
    std::fill_n(c.dense.v.begin() + 128 * 64, 128 * 64, from_float<T>(kNan));
    check_sparse(*backend, c);
    c.run(*backend);
    CHECK(std::none_of(c.dense.out.begin(), c.dense.out.end(),
                       [](T x) { return std::isnan(to_float(x)); }));
  }
}

TEST_CASE_TEMPLATE("rows for which nothing is chosen give 0 and an lse of -infinity", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const AttentionShape shape = whole_groups({{130, 130}}, 1, 1, 64);
  SparseLists later;  // the second tile comes after all rows of the first
  later.tiles = {{1, 5}, {}};
  SparseLists none;
  none.ranges.assign(2, {});
  none.columns = {{}, {129}};
  SparseCase<T> c{AttentionCase<T>::random(shape, 25), later};
  c.run(*backend);
  CHECK(std::count(c.dense.lse.begin(), c.dense.lse.end(), -kInfinity) == 130);
  c.lists = none;
  c.run(*backend);
  CHECK(std::count(c.dense.lse.begin(), c.dense.lse.end(), -kInfinity) == 129);
  CHECK(std::count_if(c.dense.out.begin(), c.dense.out.end(),
                      [](T x) { return to_float(x) == 0; }) >= 129 * 64);
}

TEST_CASE("sparse_attention refuses what does not fit by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::i32) {
    return TensorView(memory.data(), type, shape);
  };
  const auto check = [&](const std::string& expected, auto&& spoil) {
    SparseAttention args;
    args.out = args.q = tensor({130, 2, 64}, DType::bf16);
    args.kv.keys = args.kv.values = tensor({1, 130, 1, 64}, DType::bf16);
    args.group = 2;
    args.tile_counts = tensor({2, 2});
    args.tiles = tensor({2, 2, 2});
    spoil(args);
    const std::string got =
        refusal(*backend, [&](Stream& stream) { sparse_attention(args, stream); });
    CAPTURE(got);
    CHECK(got.find("sparse_attention: " + expected) == 0);
  };
  check("first_position is -1", [](SparseAttention& a) { a.first_position = -1; });
  check("first_position is 1, q is bfloat16 [130, 2, 64], but the cache is of 130 tokens",
        [](SparseAttention& a) { a.first_position = 1; });
  check("tile_counts is int32 [1, 2]", [&](SparseAttention& a) { a.tile_counts = tensor({1, 2}); });
  check("tiles is int32 [2, 4]; it must have 3 dimensions", [&](SparseAttention& a) {
    a.tiles = tensor({2, 4});
  });
  check("range_counts is ", [](SparseAttention& a) { a.tile_counts = {}; });
  check("group is 0", [](SparseAttention& a) { a.group = 0; });
}

}  // namespace
}  // namespace nvllm::kernels::testing
