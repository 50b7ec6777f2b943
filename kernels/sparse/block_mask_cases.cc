// Tests the block mask of XAttention: its definition against sums taken term by term, and every
// backend against the definition.
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/testing/prompt_case.h"
#include "kernels/sparse/testing/references.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::PlacedPrompt;
using testing::PromptCase;
using testing::PromptShape;

// What a call gave, on the host.
struct Chosen {
  std::int64_t row_tiles, heads, capacity;
  std::vector<std::int32_t> tiles, counts;

  Chosen(const PromptShape& shape, std::int64_t slack)
      : row_tiles((shape.rows + 127) / 128),
        heads(shape.heads),
        capacity((shape.tokens() + 127) / 128 + slack),
        tiles(row_tiles * heads * capacity, -7),
        counts(row_tiles * heads, -7) {}

  std::vector<std::int32_t> of(std::int64_t tile, std::int64_t head) const {
    const std::int64_t at = tile * heads + head;
    const auto begin = tiles.begin() + at * capacity;
    return {begin, begin + counts[at]};
  }
  bool operator==(const Chosen& other) const {
    for (std::int64_t tile = 0; tile < row_tiles; ++tile) {
      for (std::int64_t head = 0; head < heads; ++head) {
        if (of(tile, head) != other.of(tile, head)) return false;
      }
    }
    return true;
  }
};

template <typename T>
Chosen run_reference(PromptCase<T>& input, float threshold, std::vector<double>* scores = nullptr) {
  Chosen chosen(input.shape, 0);
  BlockMask args;
  args.prompt = input.here();
  args.threshold = threshold;
  args.tiles = TensorView(chosen.tiles.data(), DType::i32,
                          {chosen.row_tiles, chosen.heads, chosen.capacity});
  args.tile_counts = TensorView(chosen.counts.data(), DType::i32, {chosen.row_tiles, chosen.heads});
  std::vector<float> workspace(
      block_mask_workspace(input.shape.rows, input.shape.heads, input.shape.tokens()) / 4);
  args.workspace =
      TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size() * 4)});
  if (scores != nullptr) scores->resize(chosen.counts.size() * args.token_tiles());
  block_mask_reference(args, scores == nullptr ? nullptr : scores->data());
  return chosen;
}

// Memory for the gathered keys of a prompt.
template <typename T>
std::vector<T> gathered_keys_for(const PromptShape& shape) {
  const std::int64_t tokens = (shape.tokens() + kMaskTile - 1) / kMaskTile * kMaskTile;
  return std::vector<T>(tokens * shape.kv_heads * shape.head_dim, from_float<T>(testing::kNan));
}

// gathered_keys: memory for gathered keys, if not nullptr; those of the first `gathered` tokens are
// valid.
template <typename T>
Chosen run(Backend& backend, const PromptCase<T>& input, float threshold,
           std::vector<T>* gathered_keys = nullptr, std::int64_t gathered = 0,
           std::int64_t dense_rows = 0) {
  constexpr std::int64_t slack = 3;
  const auto stream = backend.create_stream();
  const PlacedPrompt<T> prompt(backend, *stream, input);
  Chosen chosen(input.shape, slack);
  Placed<std::int32_t> tiles(backend, *stream, chosen.tiles);
  Placed<std::int32_t> counts(backend, *stream, chosen.counts);
  const std::vector<float> nothing(
      block_mask_workspace(input.shape.rows, input.shape.heads, input.shape.tokens()) / 4,
      testing::kNan);
  Placed<float> workspace(backend, *stream, nothing);
  BlockMask args;
  args.prompt = prompt.rows();
  args.threshold = threshold;
  args.dense_rows = dense_rows;
  args.tiles = tiles.view({chosen.row_tiles, chosen.heads, chosen.capacity});
  args.tile_counts = counts.view({chosen.row_tiles, chosen.heads});
  args.workspace = TensorView(workspace.data(), DType::u8,
                              {static_cast<std::int64_t>(nothing.size() * sizeof(float))});
  std::optional<Placed<T>> keys;
  if (gathered_keys != nullptr) {
    keys.emplace(backend, *stream, *gathered_keys);
    const PromptShape& s = input.shape;
    const std::int64_t tokens =
        static_cast<std::int64_t>(gathered_keys->size()) / (s.kv_heads * s.head_dim);
    args.gathered = keys->view({tokens, s.kv_heads, s.head_dim});
    args.gathered_tokens = gathered;
  }
  block_mask(args, *stream);
  if (keys) *gathered_keys = keys->fetch();
  chosen.tiles = tiles.fetch();
  chosen.counts = counts.fetch();
  workspace.fetch();  // looks after its guards
  return chosen;
}

// Scores from the dot of every row and token by itself: row r and token t meet in strided row r /
// kStride and strided token t / kStride if they are on its antidiagonal.
template <typename T>
std::vector<double> scores_term_by_term(PromptCase<T>& input, std::int64_t head) {
  const PromptShape& s = input.shape;
  const std::int64_t strided_rows = (s.rows + kStride - 1) / kStride;
  const std::int64_t strided_tokens = (s.tokens() + kStride - 1) / kStride;
  std::vector<double> sums(strided_rows * strided_tokens);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t t = 0; t < s.tokens(); ++t) {
      if (r % kStride + t % kStride != kStride - 1) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        dot += double{to_float(input.query(r, head)[d])} *
               to_float(input.key(t, (s.first_head + head) / s.group)[d]);
      }
      sums[r / kStride * strided_tokens + t / kStride] += dot;
    }
  }
  const std::int64_t tiles = (s.tokens() + 127) / 128;
  std::vector<double> scores((s.rows + 127) / 128 * tiles);
  for (std::int64_t i = 0; i < strided_rows; ++i) {
    double total = 0;
    const auto weight = [&](std::int64_t j) {
      const std::int64_t last = s.first_position + std::min(kStride * (i + 1), s.rows) - 1;
      const double score = sums[i * strided_tokens + j] * input.scale / kStride;
      return kStride * j <= last ? std::exp(score) : 0.0;
    };
    for (std::int64_t j = 0; j < strided_tokens; ++j) total += weight(j);
    for (std::int64_t j = 0; j < strided_tokens; ++j) {
      scores[i / kTileStrides * tiles + j / kTileStrides] += weight(j) / total;
    }
  }
  return scores;
}

TEST_CASE("the definition's scores are antidiagonal sums under a causal softmax") {
  for (const PromptShape& shape : testing::prompt_shapes()) {
    if (shape.tokens() > 700) continue;  // slow
    CAPTURE(shape.rows);
    CAPTURE(shape.first_position);
    PromptCase<float> input(shape, 5, 3);
    std::vector<double> scores;
    run_reference(input, 0.95f, &scores);
    const std::int64_t tiles = (shape.tokens() + 127) / 128;
    int wrong = 0;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::vector<double> expected = scores_term_by_term(input, head);
      for (std::size_t at = 0; at < expected.size(); ++at) {
        const std::int64_t row_tile = static_cast<std::int64_t>(at) / tiles;
        const std::int64_t tile = static_cast<std::int64_t>(at) % tiles;
        const double score = scores[(row_tile * shape.heads + head) * tiles + tile];
        wrong += std::fabs(score - expected[at]) > 1e-5;
      }
    }
    CHECK(wrong == 0);
  }
}

// Whether the kept tiles are what the scores ask for, where arithmetic in float32 may have moved a
// score by `off`: the ones that always stay are there, they cover enough, none fewer would, and no
// tile that was left out is better than one that was taken.
bool follows(const std::vector<std::int32_t>& kept, const std::vector<double>& scores,
             std::int64_t diagonal, std::int64_t reach, float threshold, double off) {
  std::vector<bool> is_kept(reach);
  double covered = 0, total = 0, min_kept = std::numeric_limits<double>::infinity(),
         max_left_out = 0;
  for (const std::int32_t tile : kept) {
    if (tile < 0 || tile >= reach || is_kept[tile]) return false;
    is_kept[tile] = true;
  }
  if (!std::is_sorted(kept.begin(), kept.end())) return false;
  for (std::int64_t tile = 0; tile < reach; ++tile) {
    total += scores[tile];
    const bool always = tile == 0 || tile >= diagonal;
    if (is_kept[tile]) covered += scores[tile];
    if (always && !is_kept[tile]) return false;
    if (!always && is_kept[tile]) min_kept = std::min(min_kept, scores[tile]);
    if (!is_kept[tile]) max_left_out = std::max(max_left_out, scores[tile]);
  }
  const bool enough = covered >= threshold * total - off;
  const bool no_more = std::isinf(min_kept) || covered - min_kept <= threshold * total + off;
  return enough && no_more && max_left_out <= min_kept + off;
}

template <typename T>
void check_choice(Backend& backend, const PromptShape& shape, float spread, bool gather) {
  CAPTURE(gather);
  CAPTURE(shape.rows);
  CAPTURE(shape.first_position);
  CAPTURE(spread);
  PromptCase<T> input(shape, 11, spread);
  std::vector<double> scores;
  run_reference(input, 0.9f, &scores);
  std::vector<T> gathered_keys = gathered_keys_for<T>(shape);
  const Chosen chosen = run(backend, input, 0.9f, gather ? &gathered_keys : nullptr);
  const std::int64_t tiles = (shape.tokens() + 127) / 128;
  // A strided score is a sum of kStride head_dim terms in float32: at the worst it is off by as
  // many of its roundings of sums of such size, and a weight by that relatively; the weights of the
  // strided rows add up to kTileStrides.
  const auto depth = static_cast<double>(kStride * shape.head_dim);
  const double size = 8 * spread * std::sqrt(depth) * input.scale / kStride;
  const double off = kTileStrides * (size * depth * 0x1p-25 + 1e-5);
  for (std::int64_t tile = 0; tile < chosen.row_tiles; ++tile) {
    const std::int64_t last = shape.first_position + std::min((tile + 1) * 128, shape.rows) - 1;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const auto begin = scores.begin() + (tile * shape.heads + head) * tiles;
      CHECK(follows(chosen.of(tile, head), {begin, begin + tiles},
                    (shape.first_position + tile * 128) / 128, last / 128 + 1, 0.9f, off));
    }
  }
}

TEST_CASE_TEMPLATE("tiles are chosen as the definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const PromptShape& shape : testing::prompt_shapes()) {
    for (const float spread : {1.0f, 20.0f}) {
      check_choice<T>(*backend, shape, spread, false);
      check_choice<T>(*backend, shape, spread, true);
    }
  }
}

// Several tiles of strided rows and tokens, in every way that keys may lie.
TEST_CASE_TEMPLATE("tiles of long prompts are chosen as the definition says", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shapes[] = {
      {1100, 4931, 3, 2, 2, 1, 128, 16}, {5003, 0, 2, 1, 2, 0, 64, 32},
      {2048, 2048, 1, 1, 1, 0, 128, 64}, {1030, 3000, 2, 2, 1, 0, 128, 0},
      {700, 1300, 5, 2, 3, 1, 96, 8},    {1025, 2047, 1, 1, 1, 0, 128, 12},
      {1500, 777, 1, 1, 1, 0, 256, 16}};
  for (const PromptShape& shape : shapes) {
    // Sanitizers find in the longest ones what they find in the others, minutes later.
    if (nvllm::testing::kSanitized && shape.tokens() > 4200) continue;
    check_choice<T>(*backend, shape, 1, true);
    check_choice<T>(*backend, shape, 4, true);
    check_choice<T>(*backend, shape, 4, false);
  }
}

TEST_CASE_TEMPLATE("a threshold of 1 keeps every tile that a row sees", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shape{300, 333, 2, 1, 2, 0, 64};
  const Chosen chosen = run(*backend, PromptCase<T>(shape, 3, 9), 1);
  CHECK(chosen.of(0, 0) == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(chosen.of(1, 1) == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(chosen.of(2, 0) == std::vector<std::int32_t>{0, 1, 2, 3, 4});
}

TEST_CASE_TEMPLATE("tiles with one of the last rows keep all, others what they kept", T, float,
                   Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shape{300, 1300, 2, 1, 2, 0, 64};  // the last tile of rows has 44
  const PromptCase<T> input(shape, 29, 9);
  const Chosen by_score = run(*backend, input, 0.5f);
  std::vector<std::int32_t> all(13);
  std::iota(all.begin(), all.end(), 0);
  REQUIRE(by_score.of(2, 1) != all);
  struct Input {
    int dense_rows, first;  // tile of rows that keeps all
  };
  for (const Input& each : {Input{0, 3}, Input{1, 2}, Input{44, 2}, Input{45, 1}, Input{500, 0}}) {
    const int dense_rows = each.dense_rows, first = each.first;
    CAPTURE(dense_rows);
    const Chosen chosen = run<T>(*backend, input, 0.5f, nullptr, 0, dense_rows);
    for (int tile = 0; tile < 3; ++tile) {
      all.resize((1300 + std::min(tile * 128 + 127, 299)) / 128 + 1);
      std::iota(all.begin(), all.end(), 0);
      for (int head = 0; head < 2; ++head) {
        CHECK(chosen.of(tile, head) == (tile < first ? by_score.of(tile, head) : all));
      }
    }
  }
}

// A token that all rows agree on lies in a tile that is kept; tiles without such a token are not
// kept.
TEST_CASE_TEMPLATE("a needle's tile is kept, hay's are not", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shape{128, 1920, 2, 1, 2, 0, 64};
  for (const std::int64_t needle : {130, 999, 1700}) {
    PromptCase<T> input(shape, 17, 0.01f);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        input.query(row, head)[3] = from_float<T>(100);
      }
    }
    for (std::int64_t t = 0; t < shape.tokens(); ++t) input.key(t, 0)[3] = from_float<T>(0);
    input.key(needle, 0)[3] = from_float<T>(20);
    const Chosen chosen = run(*backend, input, 0.95f);
    const std::vector<std::int32_t> expected{0, static_cast<std::int32_t>(needle / 128), 15};
    CHECK(chosen.of(0, 0) == expected);
    CHECK(chosen.of(0, 1) == expected);
  }
}

TEST_CASE_TEMPLATE("equal scores: lower tiles first", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape shape{128, 1152, 1, 1, 1, 0, 64};
  PromptCase<T> input(shape, 1, 0);  // all weights are equal, each tile has a tenth
  const Chosen chosen = run(*backend, input, 0.55f);
  CHECK(chosen.of(0, 0) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 9});
}

TEST_CASE_TEMPLATE("a prompt in segments chooses as it does at once", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const PromptShape whole{1200, 0, 2, 1, 2, 0, 64};
  PromptCase<T> all(whole, 23, 6);
  for (const bool gather : {false, true}) {
    CAPTURE(gather);
    std::vector<T> gathered_keys = gathered_keys_for<T>(whole);
    const Chosen at_once = run(*backend, all, 0.9f, gather ? &gathered_keys : nullptr);
    gathered_keys = gathered_keys_for<T>(whole);
    for (std::int64_t from = 0; from < whole.rows; from += 256) {
      PromptCase<T> part = all;
      part.shape.rows = std::min<std::int64_t>(256, whole.rows - from);
      part.shape.first_position = from;
      part.q.assign(all.q.begin() + from * all.row_elements(),
                    all.q.begin() + (from + part.shape.rows) * all.row_elements());
      const Chosen chosen = run(*backend, part, 0.9f, gather ? &gathered_keys : nullptr, from);
      for (std::int64_t tile = 0; tile < chosen.row_tiles; ++tile) {
        for (std::int64_t head = 0; head < 2; ++head) {
          CHECK(chosen.of(tile, head) == at_once.of(from / 128 + tile, head));
        }
      }
    }
  }
}

TEST_CASE("what cannot be is refused by name") {
  BACKEND_OR_SKIP(backend);
  PromptCase<float> input({128, 0, 2, 1, 2, 0, 64}, 1);
  std::vector<std::int32_t> tiles(4), counts(2);
  std::vector<float> workspace(1000);
  const auto refused = [&](const std::function<void(BlockMask&)>& change) {
    BlockMask args;
    args.prompt = input.here();
    args.tiles = TensorView(tiles.data(), DType::i32, {1, 2, 1});
    args.tile_counts = TensorView(counts.data(), DType::i32, {1, 2});
    args.workspace = TensorView(workspace.data(), DType::u8, {4000});
    change(args);
    return testing::refusal(*backend, [&](Stream& stream) { block_mask(args, stream); });
  };
  const auto says = [&](const std::string& what, const std::function<void(BlockMask&)>& change) {
    const std::string message = refused(change);
    CHECK_MESSAGE(message.find(what) != std::string::npos, message);
  };
  says("threshold is 0", [](BlockMask& a) { a.threshold = 0; });
  says("threshold is 1.5", [](BlockMask& a) { a.threshold = 1.5f; });
  says("dense_rows is -1", [](BlockMask& a) { a.dense_rows = -1; });
  says("workspace", [](BlockMask& a) { a.workspace.shape[0] = 8; });
  says("tiles is", [](BlockMask& a) { a.tiles.shape[2] = 0; });
  std::vector<float> gathered_keys(128 * 64);
  says("gathered is", [&](BlockMask& a) {
    a.gathered = TensorView(gathered_keys.data(), DType::f32, {127, 1, 64});
  });
  says("gathered_tokens is 129", [&](BlockMask& a) {
    a.gathered = TensorView(gathered_keys.data(), DType::f32, {128, 1, 64});
    a.gathered_tokens = 129;
  });
  says("too few KV heads", [](BlockMask& a) { a.prompt.group = 1; });
  says("first_position is -1", [](BlockMask& a) { a.prompt.first_position = -1; });
  says("cache holds", [](BlockMask& a) {
    a.prompt.first_position = 1;
    a.prompt.kv.block_table.shape[1] = 8;
  });
}

}  // namespace
}  // namespace nvllm::kernels
