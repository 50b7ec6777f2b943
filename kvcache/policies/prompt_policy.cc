#include "kvcache/policies/prompt_policy.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kvcache {
namespace {

// --- Segments of rows, which bound the memory for lists of selected tokens ---

// A multiple of all row tile sizes, the largest of which is XAttention's on Hopper: 128 strided
// rows.
constexpr std::int64_t kSegmentRows = 2048;
constexpr std::int64_t kSegmentBytes = std::int64_t{64} << 20;

// As many rows as fit into kSegmentBytes, but at least kSegmentRows.
std::int64_t segment_rows(std::int64_t rows, std::int64_t bytes_of_row) {
  const std::int64_t fitting = kSegmentBytes / std::max<std::int64_t>(bytes_of_row, 1);
  const std::int64_t max_rows = std::max(fitting / kSegmentRows, std::int64_t{1}) * kSegmentRows;
  return std::min(rows, max_rows);
}

// Rows [first, first + count) of a call.
kernels::PromptRows segment_of(const kernels::PromptRows& rows, std::int64_t first,
                               std::int64_t count) {
  kernels::PromptRows part = rows;
  part.q = rows.q.rows(first, count);
  part.first_position += first;
  return part;
}

kernels::SparseAttention sparse_of(const kernels::PromptRows& rows, const TensorView& kv_scales,
                                   const TensorView& out) {
  kernels::SparseAttention args;
  args.out = out;
  args.q = rows.q;
  args.kv = rows.kv;
  args.kv_scales = kv_scales;
  args.group = rows.group;
  args.first_head = rows.first_head;
  args.scale = rows.scale;
  args.first_position = rows.first_position;
  return args;
}

// --- Keys in contiguous memory ---

// [tokens, kv_heads, head_dim] of the rows' type; empty if the heads differ from those that the
// memory was sized for.
TensorView room_for_keys(void* memory, std::size_t bytes, std::int64_t tokens,
                         const kernels::PromptRows& rows) {
  const TensorView room(memory, rows.q.dtype, {tokens, rows.kv.kv_heads(), rows.kv.head_dim()});
  return room.bytes() == bytes ? room : TensorView();
}

bool is_e4m3(const kernels::PromptRows& rows) {
  return rows.kv.keys.dtype == DType::u8;
}

// The rows as a selection reads them: keys in E4m3 are dequantized into `room`, which is valid
// until the next call.
kernels::PromptRows selectable_rows(const PromptAttention& args, const TensorView& room,
                                    Stream& stream) {
  kernels::PromptRows rows = args.rows;
  if (!is_e4m3(rows) || rows.rows() == 0) return rows;
  NVLLM_CHECK(room.data != nullptr, "no memory for dequantized keys");
  kernels::DequantizeKeys keys;
  keys.kv = rows.kv;
  keys.kv_scales = args.kv_scales;
  keys.tokens = rows.tokens();
  keys.out = room;
  kernels::dequantize_keys(keys, stream);
  rows.kv = {};
  rows.kv.keys = rows.kv.values =
      TensorView(room.data, room.dtype, {1, room.shape[0], room.shape[1], room.shape[2]});
  return rows;
}

// --- XAttention ---

constexpr std::int64_t tiles_of(std::int64_t tokens) {
  return divide_up(tokens, kernels::kMaskTile);
}

// Memory of segments: counts and lists of tiles, the selection's workspace, and gathered keys.
struct XAttentionSizes {
  std::int64_t rows;    // of a segment
  std::int64_t tokens;  // capacity for gathered keys, if any
  std::size_t counts, tiles, workspace, gathered;

  explicit XAttentionSizes(const PromptLimits& limits) {
    const std::int64_t tiles_seen = tiles_of(limits.tokens);
    tokens = tiles_seen * kernels::kMaskTile;
    rows = segment_rows(limits.rows, static_cast<std::int64_t>(kernels::block_mask_workspace(
                                         kSegmentRows, limits.heads, limits.tokens)) /
                                         kSegmentRows);
    const auto lists = static_cast<std::size_t>(tiles_of(rows) * limits.heads);
    counts = lists * sizeof(std::int32_t);
    tiles = counts * static_cast<std::size_t>(tiles_seen);
    workspace = kernels::block_mask_workspace(rows, limits.heads, limits.tokens);
    gathered = static_cast<std::size_t>(tokens) * limits.key_bytes;
  }
  std::size_t bytes() const {
    return counts + tiles + workspace + gathered + 4 * Arena::kAlignment;
  }
};

class XAttentionPolicy final : public PromptPolicy {
 public:
  XAttentionPolicy(Backend& backend, const PromptLimits& limits, float threshold)
      : sizes_(limits),
        threshold_(threshold),
        arena_(backend.allocate(MemoryKind::device, sizes_.bytes(), "xattention")),
        counts_(arena_.allocate(sizes_.counts, "counts of tiles")),
        tiles_(arena_.allocate(sizes_.tiles, "tiles")),
        workspace_(arena_.allocate(sizes_.workspace, "scores")),
        gathered_(arena_.allocate(sizes_.gathered, "keys")) {}

  const char* name() const override { return "xattention"; }

  void run_attention(const PromptAttention& args, Stream& stream) override {
    const std::int64_t rows = args.rows.rows();
    const TensorView room = room_for_keys(gathered_, sizes_.gathered, sizes_.tokens, args.rows);
    const kernels::PromptRows selectable = selectable_rows(args, room, stream);
    for (std::int64_t first = 0; first < rows; first += sizes_.rows) {
      const std::int64_t count = std::min(sizes_.rows, rows - first);
      const std::int64_t behind = rows - first - count + args.later_rows;
      kernels::BlockMask choice;
      choice.prompt = segment_of(selectable, first, count);
      choice.threshold = threshold_;
      choice.dense_rows = std::max<std::int64_t>(kernels::kMaskTile - behind, 0);
      choice.gathered = room;
      if (is_e4m3(args.rows)) {
        choice.gathered_tokens = choice.prompt.tokens();
      } else if (first > 0) {
        choice.gathered_tokens = choice.prompt.first_position;  // by previous segments
      }
      kernels::SparseAttention attention = sparse_of(segment_of(args.rows, first, count),
                                                     args.kv_scales, args.out.rows(first, count));
      attend_segment(choice, attention, stream);
    }
  }

 private:
  void attend_segment(kernels::BlockMask& choice, kernels::SparseAttention& attention,
                      Stream& stream) {
    const std::int64_t row_tiles = choice.row_tiles(), heads = choice.prompt.heads();
    choice.tile_counts = TensorView(counts_, DType::i32, {row_tiles, heads});
    choice.tiles = TensorView(tiles_, DType::i32, {row_tiles, heads, choice.token_tiles()});
    choice.workspace =
        TensorView(workspace_, DType::u8, {static_cast<std::int64_t>(sizes_.workspace)});
    kernels::block_mask(choice, stream);
    attention.tile_counts = choice.tile_counts;
    attention.tiles = choice.tiles;
    kernels::sparse_attention(attention, stream);
  }

  XAttentionSizes sizes_;
  float threshold_;
  Arena arena_;
  void *counts_, *tiles_, *workspace_, *gathered_;
};

// --- MInference ---

// Memory of a call's selection, and of its segments.
struct MInferenceSizes {
  std::int64_t rows;  // of a segment
  std::size_t columns, offsets, bands, workspace;
  std::size_t counts, ranges, singles;
  std::int64_t tokens;   // capacity for dequantized keys, if any
  std::size_t gathered;  // the bytes of these keys

  MInferenceSizes(const PromptLimits& limits, float budget) {
    constexpr std::size_t kInt = sizeof(std::int32_t);
    const kernels::VerticalSlashBudget lines = MInference::lines(limits.tokens, budget);
    const std::int64_t max_ranges = kernels::max_slash_ranges(limits.tokens, lines.slashes);
    const std::int64_t list_bytes = limits.heads * (2 * max_ranges + lines.verticals) * 4;
    rows = segment_rows(limits.rows, list_bytes / kernels::kSlashRows);
    const auto heads = static_cast<std::size_t>(limits.heads);
    columns = heads * static_cast<std::size_t>(lines.verticals) * kInt;
    offsets = heads * static_cast<std::size_t>(lines.slashes) * kInt;
    bands = heads * static_cast<std::size_t>(lines.slashes + 1) * 2 * kInt;
    workspace = kernels::vertical_slash_workspace(limits.heads, limits.tokens);
    const auto blocks = static_cast<std::size_t>(divide_up(rows, kernels::kSlashRows));
    counts = blocks * heads * kInt;
    ranges = counts * static_cast<std::size_t>(max_ranges) * 2;
    singles = counts * static_cast<std::size_t>(lines.verticals);
    tokens = limits.tokens;
    gathered = limits.e4m3 ? static_cast<std::size_t>(tokens) * limits.key_bytes : 0;
  }
  std::size_t bytes() const {
    return columns + offsets + bands + workspace + 2 * counts + ranges + singles + gathered +
           9 * Arena::kAlignment;
  }
};

class MInferencePolicy final : public PromptPolicy {
 public:
  MInferencePolicy(Backend& backend, const PromptLimits& limits, float budget)
      : sizes_(limits, budget),
        budget_(budget),
        arena_(backend.allocate(MemoryKind::device, sizes_.bytes(), "minference")),
        columns_(arena_.allocate(sizes_.columns, "columns")),
        offsets_(arena_.allocate(sizes_.offsets, "offsets")),
        bands_(arena_.allocate(sizes_.bands, "bands")),
        workspace_(arena_.allocate(sizes_.workspace, "sums")),
        range_counts_(arena_.allocate(sizes_.counts, "counts of ranges")),
        ranges_(arena_.allocate(sizes_.ranges, "ranges")),
        single_counts_(arena_.allocate(sizes_.counts, "counts of columns")),
        singles_(arena_.allocate(sizes_.singles, "columns outside ranges")),
        gathered_(arena_.allocate(sizes_.gathered, "keys")) {}

  const char* name() const override { return "minference"; }

  void run_attention(const PromptAttention& args, Stream& stream) override {
    const std::int64_t heads = args.rows.heads(), rows = args.rows.rows();
    const kernels::VerticalSlashBudget lines = MInference::lines(args.rows.tokens(), budget_);
    kernels::VerticalSlash choice;
    choice.prompt = selectable_rows(
        args, room_for_keys(gathered_, sizes_.gathered, sizes_.tokens, args.rows), stream);
    choice.columns = TensorView(columns_, DType::i32, {heads, lines.verticals});
    choice.offsets = TensorView(offsets_, DType::i32, {heads, lines.slashes});
    choice.workspace =
        TensorView(workspace_, DType::u8, {static_cast<std::int64_t>(sizes_.workspace)});
    kernels::vertical_slash(choice, stream);

    kernels::VerticalSlashIndex lists;
    lists.columns = choice.columns;
    lists.offsets = choice.offsets;
    lists.bands = TensorView(bands_, DType::i32, {heads, lines.slashes + 1, 2});
    kernels::slash_bands(lists.bands, lists.offsets, stream);
    for (std::int64_t first = 0; first < rows; first += sizes_.rows) {
      const std::int64_t count = std::min(sizes_.rows, rows - first);
      attend_segment(lists, args, first, count, stream);
    }
  }

 private:
  void attend_segment(kernels::VerticalSlashIndex lists, const PromptAttention& args,
                      std::int64_t first, std::int64_t count, Stream& stream) {
    const kernels::PromptRows rows = segment_of(args.rows, first, count);
    lists.first_position = rows.first_position;
    lists.rows = rows.rows();
    const std::int64_t heads = rows.heads(), blocks = lists.blocks();
    const std::int64_t verticals = lists.columns.shape[1];
    const std::int64_t max_ranges =
        kernels::max_slash_ranges(rows.tokens(), lists.offsets.shape[1]);
    lists.ranges = TensorView(ranges_, DType::i32, {blocks, heads, max_ranges, 2});
    lists.range_counts = TensorView(range_counts_, DType::i32, {blocks, heads});
    lists.singles = TensorView(singles_, DType::i32, {blocks, heads, verticals});
    lists.single_counts = TensorView(single_counts_, DType::i32, {blocks, heads});
    kernels::vertical_slash_index(lists, stream);

    kernels::SparseAttention attention =
        sparse_of(rows, args.kv_scales, args.out.rows(first, count));
    attention.ranges = lists.ranges;
    attention.range_counts = lists.range_counts;
    attention.columns = lists.singles;
    attention.column_counts = lists.single_counts;
    kernels::sparse_attention(attention, stream);
  }

  MInferenceSizes sizes_;
  float budget_;
  Arena arena_;
  void *columns_, *offsets_, *bands_, *workspace_;
  void *range_counts_, *ranges_, *single_counts_, *singles_, *gathered_;
};

}  // namespace

std::size_t XAttention::bytes(const PromptLimits& limits) {
  return XAttentionSizes(limits).bytes();
}

std::unique_ptr<PromptPolicy> XAttention::create(Backend& backend, const PromptLimits& limits,
                                                 float threshold) {
  return std::make_unique<XAttentionPolicy>(backend, limits, threshold);
}

kernels::VerticalSlashBudget MInference::lines(std::int64_t tokens, float budget) {
  const kernels::VerticalSlashBudget published = kernels::vertical_slash_budget(tokens);
  const auto times = [&](std::int64_t lines, std::int64_t always) {
    const double wanted =
        std::min(static_cast<double>(lines) * budget, static_cast<double>(tokens));
    return std::min(std::max(static_cast<std::int64_t>(wanted), always + 1), tokens);
  };
  return {times(published.verticals, kernels::kFirstVerticals),
          times(published.slashes, kernels::kFirstSlashes)};
}

std::size_t MInference::bytes(const PromptLimits& limits, float budget) {
  return MInferenceSizes(limits, budget).bytes();
}

std::unique_ptr<PromptPolicy> MInference::create(Backend& backend, const PromptLimits& limits,
                                                 float budget) {
  return std::make_unique<MInferencePolicy>(backend, limits, budget);
}

}  // namespace nvllm::kvcache
