// Tests the columns and diagonals that vertical_slash() selects, and the index made of them,
// against MInference's recipe token by token.
#include <set>

#include "kernels/sparse/testing/prompt_case.h"
#include "kernels/sparse/testing/references.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::PlacedPrompt;
using testing::PromptCase;
using testing::PromptShape;

using Ids = std::vector<std::int32_t>;

struct Lines {
  std::int64_t heads;
  VerticalSlashBudget budget;
  Ids columns, offsets;

  Lines(std::int64_t heads, VerticalSlashBudget budget)
      : heads(heads),
        budget(budget),
        columns(heads * budget.verticals, -7),
        offsets(heads * budget.slashes, -7) {}
  Ids columns_of(std::int64_t head) const { return part(columns, head, budget.verticals); }
  Ids offsets_of(std::int64_t head) const { return part(offsets, head, budget.slashes); }

 private:
  static Ids part(const Ids& all, std::int64_t head, std::int64_t count) {
    return {all.begin() + head * count, all.begin() + (head + 1) * count};
  }
};

template <typename T>
Lines run_reference(PromptCase<T>& input, VerticalSlashBudget budget) {
  Lines lines(input.shape.heads, budget);
  std::vector<float> workspace(vertical_slash_workspace(lines.heads, input.shape.tokens()) / 4);
  VerticalSlash args;
  args.prompt = input.here();
  args.columns = TensorView(lines.columns.data(), DType::i32, {lines.heads, budget.verticals});
  args.offsets = TensorView(lines.offsets.data(), DType::i32, {lines.heads, budget.slashes});
  args.workspace =
      TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size() * 4)});
  vertical_slash_reference(args);
  return lines;
}

template <typename T>
Lines run(Backend& backend, const PromptCase<T>& input, VerticalSlashBudget budget) {
  const auto stream = backend.create_stream();
  const PlacedPrompt<T> prompt(backend, *stream, input);
  Lines lines(input.shape.heads, budget);
  Placed<std::int32_t> columns(backend, *stream, lines.columns);
  Placed<std::int32_t> offsets(backend, *stream, lines.offsets);
  const std::vector<float> nothing(vertical_slash_workspace(lines.heads, input.shape.tokens()) / 4,
                                   testing::kNan);
  Placed<float> workspace(backend, *stream, nothing);
  VerticalSlash args;
  args.prompt = prompt.rows();
  args.columns = columns.view({lines.heads, budget.verticals});
  args.offsets = offsets.view({lines.heads, budget.slashes});
  args.workspace = TensorView(workspace.data(), DType::u8,
                              {static_cast<std::int64_t>(nothing.size() * sizeof(float))});
  vertical_slash(args, *stream);
  lines.columns = columns.fetch();
  lines.offsets = offsets.fetch();
  workspace.fetch();
  return lines;
}

TEST_CASE("budgets are the published ones") {
  const auto budget = [](std::int64_t tokens) {
    const VerticalSlashBudget lines = vertical_slash_budget(tokens);
    return std::pair(lines.verticals, lines.slashes);
  };
  CHECK(budget(1) == std::pair<std::int64_t, std::int64_t>(1, 1));
  CHECK(budget(50) == std::pair<std::int64_t, std::int64_t>(31, 50));
  CHECK(budget(200) == std::pair<std::int64_t, std::int64_t>(31, 101));
  CHECK(budget(1000) == std::pair<std::int64_t, std::int64_t>(60, 240));
  CHECK(budget(8192) == std::pair<std::int64_t, std::int64_t>(491, 1965));
  CHECK(budget(32768) == std::pair<std::int64_t, std::int64_t>(1000, 6096));
  CHECK(budget(1 << 20) == std::pair<std::int64_t, std::int64_t>(1000, 6096));
}

// The weights of every estimation row and token, taken one by one, added up by column and by
// offset.
template <typename T>
void weigh(PromptCase<T>& input, std::int64_t head, std::vector<double>& by_token,
           std::vector<double>& by_offset) {
  const PromptShape& s = input.shape;
  by_token.assign(s.tokens(), 0);
  by_offset.assign(s.tokens(), 0);
  const std::int64_t estimation_rows = std::min<std::int64_t>(64, s.rows);
  for (std::int64_t i = 0; i < estimation_rows; ++i) {
    const std::int64_t row = s.rows - estimation_rows + i, position = s.first_position + row;
    std::vector<double> weights(position + 1);
    double total = 0;
    for (std::int64_t j = 0; j <= position; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        dot += double{to_float(input.query(row, head)[d])} *
               to_float(input.key(j, (s.first_head + head) / s.group)[d]);
      }
      total += weights[j] = std::exp(dot * input.scale);
    }
    for (std::int64_t j = 0; j <= position; ++j) {
      by_token[j] += weights[j] / total;
      by_offset[position - j] += weights[j] / total;
    }
  }
}

// Whether `taken` are the highest, where arithmetic in float32 may have moved each by `off` of
// itself.
bool highest(const Ids& taken, const std::vector<double>& sums, std::int64_t always, double off) {
  std::set<std::int32_t> in(taken.begin(), taken.end());
  if (in.size() != taken.size() || !std::is_sorted(taken.begin(), taken.end())) return false;
  double min_taken = 1e300, max_left_out = 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
    const bool mine = in.count(static_cast<std::int32_t>(i)) > 0;
    if (i < always && !mine && static_cast<std::int64_t>(taken.size()) >= always) return false;
    if (i < always) continue;
    if (mine) min_taken = std::min(min_taken, sums[i]);
    if (!mine) max_left_out = std::max(max_left_out, sums[i]);
  }
  return max_left_out <= min_taken * (1 + off);
}

TEST_CASE_TEMPLATE("columns and diagonals are those of the highest sums", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const PromptShape& shape : testing::prompt_shapes()) {
    for (const VerticalSlashBudget full_budget :
         {vertical_slash_budget(shape.tokens()), VerticalSlashBudget{40, 120}}) {
      const VerticalSlashBudget budget{std::min(full_budget.verticals, shape.tokens()),
                                       std::min(full_budget.slashes, shape.tokens())};
      CAPTURE(shape.rows);
      CAPTURE(shape.first_position);
      PromptCase<T> input(shape, 31, 3);
      const Lines reference = run_reference(input, budget);
      const Lines lines = run(*backend, input, budget);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        std::vector<double> by_token, by_offset;
        weigh(input, head, by_token, by_offset);
        CHECK(highest(reference.columns_of(head), by_token, 30, 1e-9));
        CHECK(highest(reference.offsets_of(head), by_offset, 100, 1e-9));
        // Scores are of a size of some 30, off by some head_dim roundings of it.
        const double off = 4 * 30 * static_cast<double>(shape.head_dim) * 0x1p-23;
        CHECK(highest(lines.columns_of(head), by_token, 30, off));
        CHECK(highest(lines.offsets_of(head), by_offset, 100, off));
      }
    }
  }
}

TEST_CASE_TEMPLATE("a needle's column and a repetition's diagonal are found", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shape{128, 1400, 1, 1, 1, 0, 64};
  PromptCase<T> input(shape, 17, 0.01f);
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    for (std::int64_t d = 0; d < 64; ++d) input.key(t, 0)[d] = from_float<T>(0);
  }
  // Row r of the last 64 looks for its own direction, which lies 700 tokens before it, and for 777.
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int64_t row = shape.rows - 64 + i;
    input.query(row, 0)[i] = from_float<T>(100);
    input.key(shape.first_position + row - 700, 0)[i] = from_float<T>(2);
  }
  for (std::int64_t d = 0; d < 64; ++d) input.key(777, 0)[d] = from_float<T>(1.9f);
  const Lines lines = run(*backend, input, {31, 101});
  CHECK(lines.columns_of(0).back() == 777);
  CHECK(lines.offsets_of(0).back() == 700);
}

TEST_CASE("equal sums: lower ones first") {
  BACKEND_OR_SKIP(backend);
  PromptCase<float> input({1, 400, 1, 1, 1, 0, 64}, 1, 0);  // one row, all weights equal
  const Lines lines = run(*backend, input, {50, 130});
  Ids first(50), diagonals(130);
  std::iota(first.begin(), first.end(), 0);
  std::iota(diagonals.begin(), diagonals.end(), 0);
  CHECK(lines.columns_of(0) == first);
  CHECK(lines.offsets_of(0) == diagonals);
}

// What the recipe says of one block.
std::set<std::int32_t> tokens_of_block(const Ids& columns, const Ids& offsets, std::int64_t e,
                                       std::int64_t end) {
  std::set<std::int32_t> tokens;
  for (const std::int32_t o : offsets) {
    if (o >= e) continue;
    const std::int64_t x = std::max<std::int64_t>(e - o, kSlashRows);
    for (std::int64_t t = x - kSlashRows; t < std::min(x, end); ++t) {
      tokens.insert(static_cast<std::int32_t>(t));
    }
  }
  for (const std::int32_t column : columns) {
    if (column < end) tokens.insert(column);
  }
  return tokens;
}

struct Listed {
  VerticalSlashIndex args;
  Ids ranges, range_counts, singles, single_counts;
};

Listed list(Backend& backend, const Lines& lines, std::int64_t first_position, std::int64_t rows) {
  const auto stream = backend.create_stream();
  Listed result;
  VerticalSlashIndex& args = result.args;
  const std::int64_t slashes = lines.budget.slashes, verticals = lines.budget.verticals;
  const std::int64_t capacity = max_slash_ranges(first_position + rows, slashes);
  Placed<std::int32_t> columns(backend, *stream, lines.columns);
  Placed<std::int32_t> offsets(backend, *stream, lines.offsets);
  Placed<std::int32_t> bands(backend, *stream, Ids(lines.heads * (slashes + 1) * 2, -7));
  args.first_position = first_position;
  args.rows = rows;
  args.columns = columns.view({lines.heads, verticals});
  args.offsets = offsets.view({lines.heads, slashes});
  args.bands = bands.view({lines.heads, slashes + 1, 2});
  const std::int64_t lists = args.blocks() * lines.heads;
  Placed<std::int32_t> ranges(backend, *stream, Ids(lists * capacity * 2, -7));
  Placed<std::int32_t> range_counts(backend, *stream, Ids(lists, -7));
  Placed<std::int32_t> singles(backend, *stream, Ids(lists * verticals, -7));
  Placed<std::int32_t> single_counts(backend, *stream, Ids(lists, -7));
  args.ranges = ranges.view({args.blocks(), lines.heads, capacity, 2});
  args.range_counts = range_counts.view({args.blocks(), lines.heads});
  args.singles = singles.view({args.blocks(), lines.heads, verticals});
  args.single_counts = single_counts.view({args.blocks(), lines.heads});
  stream->synchronize();
  slash_bands(args.bands, args.offsets, *stream);
  vertical_slash_index(args, *stream);
  bands.fetch();
  result.ranges = ranges.fetch();
  result.range_counts = range_counts.fetch();
  result.singles = singles.fetch();
  result.single_counts = single_counts.fetch();
  return result;
}

// Exactly the recipe's tokens, none twice, in ranges that are apart, ascending and not too many.
void check_lists(Backend& backend, const Lines& lines, std::int64_t first_position,
                 std::int64_t rows) {
  const Listed listed = list(backend, lines, first_position, rows);
  const std::int64_t tokens = first_position + rows, verticals = lines.budget.verticals;
  const std::int64_t capacity = listed.args.ranges.shape[2];
  int wrong = 0;
  for (std::int64_t block = 0; block < listed.args.blocks(); ++block) {
    for (std::int64_t head = 0; head < lines.heads; ++head) {
      const std::int64_t at = block * lines.heads + head;
      const std::int64_t e = first_position + (block + 1) * kSlashRows, end = std::min(e, tokens);
      Ids got;
      std::int32_t before = -1;
      wrong += listed.range_counts[at] > tokens / kSlashRows + 1;
      for (std::int32_t i = 0; i < listed.range_counts[at]; ++i) {
        const std::int32_t begin = listed.ranges[(at * capacity + i) * 2];
        const std::int32_t stop = listed.ranges[(at * capacity + i) * 2 + 1];
        wrong += begin <= before || stop <= begin;
        before = stop;
        for (std::int32_t t = begin; t < stop; ++t) got.push_back(t);
      }
      const auto singles = listed.singles.begin() + at * verticals;
      wrong += !std::is_sorted(singles, singles + listed.single_counts[at]);
      got.insert(got.end(), singles, singles + listed.single_counts[at]);
      std::sort(got.begin(), got.end());
      const auto expected = tokens_of_block(lines.columns_of(head), lines.offsets_of(head), e, end);
      wrong += got != Ids(expected.begin(), expected.end());  // also: no duplicates
    }
  }
  CHECK(wrong == 0);
}

Ids some(std::mt19937& bits, std::int64_t count, std::int64_t below, std::int64_t always) {
  std::set<std::int32_t> chosen;
  for (std::int64_t i = 0; i < std::min(always, count); ++i) chosen.insert(static_cast<int>(i));
  while (static_cast<std::int64_t>(chosen.size()) < count) {
    chosen.insert(static_cast<std::int32_t>(bits() % below));
  }
  return {chosen.begin(), chosen.end()};
}

TEST_CASE("lists cover exactly what the recipe says, each token once") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 bits(3);
  for (int round = 0; round < 40; ++round) {
    const std::int64_t first_position = round % 3 == 0 ? 0 : bits() % 700;
    const std::int64_t rows = 1 + bits() % 400, tokens = first_position + rows;
    const std::int64_t heads = 1 + bits() % 3;
    const std::int64_t slashes = 1 + bits() % std::min<std::int64_t>(tokens, 40);
    Lines lines(heads, {1 + static_cast<std::int64_t>(bits() % tokens), slashes});
    lines.columns.clear();
    lines.offsets.clear();
    for (std::int64_t head = 0; head < heads; ++head) {
      const Ids columns = some(bits, lines.budget.verticals, tokens, 30);
      const Ids offsets = some(bits, slashes, tokens, round % 2 == 0 ? 100 : 0);
      lines.columns.insert(lines.columns.end(), columns.begin(), columns.end());
      lines.offsets.insert(lines.offsets.end(), offsets.begin(), offsets.end());
    }
    CAPTURE(first_position);
    CAPTURE(rows);
    check_lists(*backend, lines, first_position, rows);
  }
}

TEST_CASE("all offsets are one range up to the row, and every offset apart many") {
  BACKEND_OR_SKIP(backend);
  Lines all(1, {300, 300});
  std::iota(all.columns.begin(), all.columns.end(), 0);
  std::iota(all.offsets.begin(), all.offsets.end(), 0);
  const Listed listed = list(*backend, all, 0, 300);
  CHECK(listed.range_counts == Ids{1, 1, 1});
  CHECK(listed.single_counts == Ids{0, 0, 0});
  Lines apart(1, {1, 15});
  apart.columns = {0};
  for (std::int32_t i = 0; i < 15; ++i) apart.offsets[i] = i * (kSlashRows + 1);
  check_lists(*backend, apart, 0, 2000);
}

TEST_CASE("more lines than tokens are refused by name") {
  BACKEND_OR_SKIP(backend);
  PromptCase<float> input({64, 0, 1, 1, 1, 0, 64}, 1);
  std::vector<float> workspace(vertical_slash_workspace(1, 64) / 4);
  Ids columns(65), offsets(64);
  VerticalSlash args;
  args.prompt = input.here();
  args.columns = TensorView(columns.data(), DType::i32, {1, 65});
  args.offsets = TensorView(offsets.data(), DType::i32, {1, 64});
  args.workspace =
      TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size() * 4)});
  const auto message = [&] {
    return testing::refusal(*backend, [&](Stream& stream) { vertical_slash(args, stream); });
  };
  CHECK(message().find("of 64 tokens 1 to 64 can be chosen") != std::string::npos);
  args.columns.shape[1] = 64;
  args.workspace.shape[0] = 16;
  CHECK(message().find("workspace is") != std::string::npos);
}

}  // namespace
}  // namespace nvllm::kernels
