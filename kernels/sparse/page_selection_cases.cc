// Tests the bounds and the page selection of Quest against their definition, on whichever backend
// is linked.
#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/sparse/page_selection.h"
#include "kernels/sparse/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using Ids = std::vector<std::int32_t>;

// A cache of blocks for some sequences, and bounds of its pages.
template <typename T>
struct Cache {
  std::int64_t blocks, block_size, kv_heads, head_dim, page_tokens;
  std::vector<T> keys, bounds;

  Cache(std::int64_t blocks, std::int64_t block_size, std::int64_t kv_heads, std::int64_t head_dim,
        std::int64_t page_tokens, unsigned seed)
      : blocks(blocks),
        block_size(block_size),
        kv_heads(kv_heads),
        head_dim(head_dim),
        page_tokens(page_tokens),
        keys(testing::normal_values<T>(blocks * block_size * kv_heads * head_dim, seed)),
        bounds(keys.size() / page_tokens * 2, from_float<T>(-77)) {}

  // Rows of sequences, a block table each: [first position, rows].
  struct Rows {
    std::vector<Ids> tables;
    std::vector<std::pair<int, int>> rows;
    Ids block_map = {};  // by block; none: themselves
    std::int64_t slack = 0;
  };

  void store(Backend& backend, const Rows& rows) {
    const auto stream = backend.create_stream();
    Placed<T> keys_there(backend, *stream, keys), bounds_there(backend, *stream, bounds);
    const auto place = [&](const Ids& ids) { return Placed<std::int32_t>(backend, *stream, ids); };
    const Placed<std::int32_t> starts = place(starts_of(rows)), lengths = place(lengths_of(rows));
    const Placed<std::int32_t> tables = place(joined(rows.tables)),
                               block_map = place(rows.block_map);
    stream->synchronize();
    update_page_bounds(args(rows, keys_there.data(), bounds_there.data(), starts.data(),
                            lengths.data(), tables.data(), block_map.data()),
                       *stream);
    bounds = bounds_there.fetch();
  }
  void store_by_definition(const Rows& rows) {
    Ids starts = starts_of(rows), lengths = lengths_of(rows), tables = joined(rows.tables),
        block_map = rows.block_map;
    update_page_bounds_reference(args(rows, keys.data(), bounds.data(), starts.data(),
                                      lengths.data(), tables.data(), block_map.data()));
  }
  // As one sequence has it that owns all blocks.
  void store_all() {
    Ids table(blocks);
    std::iota(table.begin(), table.end(), 0);
    store_by_definition({{table}, {{0, static_cast<int>(blocks * block_size)}}});
  }

 private:
  static Ids joined(const std::vector<Ids>& parts) {
    Ids all;
    for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  static Ids starts_of(const Rows& rows) {
    Ids starts{0};
    for (const auto& each : rows.rows) starts.push_back(starts.back() + each.second);
    return starts;
  }
  static Ids lengths_of(const Rows& rows) {
    Ids lengths;
    for (const auto& each : rows.rows) lengths.push_back(each.first + each.second);
    return lengths;
  }

  UpdatePageBounds args(const Rows& rows, T* key_data, T* bound_data, std::int32_t* starts,
                        std::int32_t* lengths, std::int32_t* tables,
                        std::int32_t* block_map) const {
    const auto sequences = static_cast<std::int64_t>(rows.rows.size());
    const auto width = static_cast<std::int64_t>(rows.tables.front().size());
    UpdatePageBounds args;
    args.kv.keys = TensorView(key_data, dtype_of<T>, {blocks, block_size, kv_heads, head_dim});
    args.kv.values = args.kv.keys;
    args.kv.block_table = TensorView(tables, DType::i32, {sequences, width});
    args.query_start = TensorView(starts, DType::i32, {sequences + 1});
    args.kv_length = TensorView(lengths, DType::i32, {sequences});
    if (!rows.block_map.empty()) args.block_map = TensorView(block_map, DType::i32, {blocks});
    args.bounds = TensorView(bound_data, dtype_of<T>,
                             {blocks * block_size / page_tokens, kv_heads, 2, head_dim});
    args.page_tokens = page_tokens;
    for (const auto& each : rows.rows) {
      args.max_query_rows = std::max<std::int64_t>(args.max_query_rows, each.second);
    }
    args.max_query_rows += rows.slack;
    return args;
  }
};

TEST_CASE_TEMPLATE("bounds are of the page's tokens up to the newest", T, FLOAT_TYPES, E4m3) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t page : {1, 8, 16, 32}) {
    for (const std::int64_t head_dim : {8, 40, 64, 128, 256}) {
      CAPTURE(page);
      CAPTURE(head_dim);
      Cache<T> cache(7, 32, 2, head_dim, page, 3);
      Cache<T> expected = cache;
      // A part of a prompt, padding, a prompt, a token, a token that is the first of its block.
      const typename Cache<T>::Rows rows{{{2, 5, 3}, {0, 0, 0}, {6, 0, 0}, {1, 0, 0}, {4, 0, 0}},
                                         {{6, 61}, {0, 0}, {0, 17}, {14, 1}, {32, 1}},
                                         {},
                                         50};
      cache.store(*backend, rows);
      expected.store_by_definition(rows);
      CHECK(testing::same_bits(cache.bounds, expected.bounds));
      // Each bound is some key's of the page: of tokens 0 to `page` of block 6.
      const std::int64_t first = 6 * 32, end = first + std::min<std::int64_t>(page, 17);
      float min_key = testing::kInfinity, max_key = -testing::kInfinity;
      for (std::int64_t t = first; t < end; ++t) {
        const float key = to_float(cache.keys[t * 2 * head_dim + 5]);
        min_key = std::min(min_key, key);
        max_key = std::max(max_key, key);
      }
      CHECK(to_float(cache.bounds[first / page * 4 * head_dim + 5]) == min_key);
      CHECK(to_float(cache.bounds[first / page * 4 * head_dim + head_dim + 5]) == max_key);
    }
  }
}

TEST_CASE("a page's next owner finds nothing of the one before") {
  BACKEND_OR_SKIP(backend);
  Cache<float> cache(1, 16, 1, 8, 16, 3);
  for (float& key : cache.keys) key = 1000;
  cache.store(*backend, {{{0}}, {{0, 16}}});
  std::fill_n(cache.keys.begin(), 8, 1.0f);  // the next sequence's first token
  cache.store(*backend, {{{0}}, {{0, 1}}});
  CHECK(cache.bounds == std::vector<float>(16, 1.0f));
}

TEST_CASE("bounds may be kept elsewhere than keys") {
  BACKEND_OR_SKIP(backend);
  Cache<float> cache(4, 16, 1, 8, 16, 3), expected = cache;
  cache.store(*backend, {{{3}}, {{0, 2}}, {-1, -1, -1, 1}});  // block 3's keys are in place 1
  expected.store_by_definition({{{1}}, {{0, 2}}});
  CHECK(std::equal(cache.bounds.begin() + 48, cache.bounds.end(), expected.bounds.begin() + 16));
}

// Key: the type of keys and bounds.
template <typename T, typename Key = T>
struct Choice {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, group, first_head, budget;
  Cache<Key>* cache;
  std::vector<T> q;
  Ids table, pages, counts;
  std::int64_t q_gap = 16, width = 0, slack = 0;

  Choice(Cache<Key>& cache, std::vector<std::int32_t> lengths, std::int64_t group,
         std::int64_t first_head, std::int64_t heads, std::int64_t budget, unsigned seed)
      : lengths(std::move(lengths)),
        heads(heads),
        group(group),
        first_head(first_head),
        budget(budget),
        cache(&cache) {
    q = testing::normal_values<T>(sequences() * row(), seed);
    width = longest() / cache.block_size + 1;
    Ids ids(cache.blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    for (std::int64_t i = 0; i < sequences() * width; ++i) table.push_back(ids[i % cache.blocks]);
    pages.assign(sequences() * cache.kv_heads * budget, -7);
    counts.assign(sequences() * cache.kv_heads, -7);
  }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t row() const { return heads * cache->head_dim + q_gap; }
  std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

  PageSelection args(T* q_data, Key* bounds, std::int32_t* tables, std::int32_t* length_data,
                     std::int32_t* page_data, std::int32_t* count_data, void* workspace) const {
    PageSelection args;
    args.q = TensorView(q_data, dtype_of<T>, {sequences(), heads, cache->head_dim});
    args.q.stride[0] = row();
    args.bounds = TensorView(bounds, dtype_of<Key>,
                             {cache->blocks * cache->block_size / cache->page_tokens,
                              cache->kv_heads, 2, cache->head_dim});
    args.block_table = TensorView(tables, DType::i32, {sequences(), width});
    args.kv_length = TensorView(length_data, DType::i32, {sequences()});
    args.block_size = cache->block_size;
    args.page_tokens = cache->page_tokens;
    args.budget = budget;
    args.group = group;
    args.first_head = first_head;
    args.max_kv_length = longest() + slack;
    args.pages = TensorView(page_data, DType::i32, {sequences(), cache->kv_heads, budget});
    args.page_counts = TensorView(count_data, DType::i32, {sequences(), cache->kv_heads});
    args.workspace = TensorView(workspace, DType::u8, {static_cast<std::int64_t>(bytes())});
    return args;
  }
  std::size_t bytes() const {
    return page_selection_workspace(sequences(), cache->kv_heads, longest() + slack,
                                    cache->page_tokens);
  }
  void run_reference() {
    std::vector<float> workspace(bytes() / 4);
    page_selection_reference(args(q.data(), cache->bounds.data(), table.data(), lengths.data(),
                                  pages.data(), counts.data(), workspace.data()));
  }
  void run(Backend& backend) {
    const auto stream = backend.create_stream();
    Placed<T> q_there(backend, *stream, q);
    Placed<Key> bounds(backend, *stream, cache->bounds);
    Placed<std::int32_t> tables(backend, *stream, table), length(backend, *stream, lengths),
        pages_there(backend, *stream, pages), counts_there(backend, *stream, counts);
    Placed<float> workspace(backend, *stream, std::vector<float>(bytes() / 4, testing::kNan));
    stream->synchronize();
    page_selection(args(q_there.data(), bounds.data(), tables.data(), length.data(),
                        pages_there.data(), counts_there.data(), workspace.data()),
                   *stream);
    pages = pages_there.fetch();
    counts = counts_there.fetch();
    workspace.fetch();
  }
  Ids of(std::int64_t sequence, std::int64_t kv_head) const {
    const std::int64_t at = sequence * cache->kv_heads + kv_head;
    return {pages.begin() + at * budget, pages.begin() + at * budget + counts[at]};
  }
};

// Values are small multiples of 1/8, so that sums are exact and backends have nothing to differ in.
template <typename T>
void make_exact(std::vector<T>& values) {
  for (T& value : values) value = from_float<T>(std::round(8 * to_float(value)) / 8);
}

template <typename T, typename Key>
void check_choices(Backend& backend) {
  unsigned seed = 1;
  for (const std::int64_t page : {8, 16, 32}) {
    for (const std::int64_t budget : {2, 3, 7, 40}) {
      for (const std::int64_t head_dim : {40, 64, 128}) {
        CAPTURE(page);
        CAPTURE(budget);
        CAPTURE(head_dim);
        Cache<Key> cache(61, 32, 2, head_dim, page, ++seed);
        make_exact(cache.keys);
        cache.store_all();
        Choice<T, Key> got(cache, {0, 1, 8, 9, 32, 33, 500, 641, 1200}, 3, 1, 5, budget, ++seed);
        make_exact(got.q);
        got.slack = 100;
        Choice<T, Key> expected = got;
        got.run(backend);
        expected.run_reference();
        int wrong = 0;
        for (std::int64_t s = 0; s < got.sequences(); ++s) {
          for (std::int64_t g = 0; g < 2; ++g) wrong += got.of(s, g) != expected.of(s, g);
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("pages are chosen as the definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  check_choices<T, T>(*backend);
}

TEST_CASE_TEMPLATE("pages are chosen by bounds in E4m3, too", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  check_choices<T, E4m3>(*backend);
}

// Σ max(q·min, q·max) bounds every key's score; the larger of the two sums would not.
TEST_CASE_TEMPLATE("a page with one good key is chosen, whatever lies beside it", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  Cache<T> cache(40, 16, 1, 64, 16, 5);
  for (T& key : cache.keys) key = from_float<T>(0);
  Choice<T> got(cache, {640}, 1, 0, 1, 4, 9);
  for (std::int64_t d = 0; d < 64; ++d) got.q[d] = from_float<T>(d % 2 == 0 ? 1 : -1);
  const std::int64_t good = 21;
  const std::int64_t at = got.table[good] * 16 * 64;
  for (std::int64_t d = 0; d < 64; ++d) {
    cache.keys[at + 3 * 64 + d] = got.q[d];                                // the needle
    cache.keys[at + 4 * 64 + d] = from_float<T>(-2 * to_float(got.q[d]));  // its opposite
  }
  cache.store_all();
  got.run(*backend);
  CHECK(got.of(0, 0) == Ids{0, 1, 21, 39});
}

TEST_CASE("what cannot be is refused by name") {
  BACKEND_OR_SKIP(backend);
  Cache<float> cache(4, 16, 1, 64, 16, 5);
  Choice<float> input(cache, {64}, 1, 0, 1, 4, 9);
  std::vector<float> workspace(input.bytes() / 4);
  const auto says = [&](const std::string& what,
                        const std::function<void(PageSelection&)>& change) {
    PageSelection args =
        input.args(input.q.data(), cache.bounds.data(), input.table.data(), input.lengths.data(),
                   input.pages.data(), input.counts.data(), workspace.data());
    change(args);
    const std::string message =
        testing::refusal(*backend, [&](Stream& stream) { page_selection(args, stream); });
    CHECK_MESSAGE(message.find(what) != std::string::npos, message);
  };
  says("budget is 1", [](PageSelection& a) { a.budget = 1; });
  says("page_tokens is 12", [](PageSelection& a) { a.page_tokens = 12; });
  says("does not fit groups of 1", [](PageSelection& a) { a.q.shape[1] = 2; });
  says("workspace", [](PageSelection& a) { a.workspace.shape[0] = 1; });
}

}  // namespace
}  // namespace nvllm::kernels
