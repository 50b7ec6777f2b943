#include "kvcache/policies/prompt_policy.h"

#include <algorithm>

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

kernels::SparseAttention sparse_of(const kernels::PromptRows& rows, const TensorView& out) {
  kernels::SparseAttention args;
  args.out = out;
  args.q = rows.q;
  args.kv = rows.kv;
  args.group = rows.group;
  args.first_head = rows.first_head;
  args.scale = rows.scale;
  args.first_position = rows.first_position;
  return args;
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
    for (std::int64_t first = 0; first < rows; first += sizes_.rows) {
      const std::int64_t count = std::min(sizes_.rows, rows - first);
      const kernels::PromptRows segment = segment_of(args.rows, first, count);
      // by previous segments
      const std::int64_t gathered = first == 0 ? 0 : segment.first_position;
      const std::int64_t behind = rows - first - count + args.later_rows;
      const std::int64_t whole = std::max<std::int64_t>(kernels::kMaskTile - behind, 0);
      attend_segment(segment, gathered, whole, args.out.rows(first, count), stream);
    }
  }

 private:
  void attend_segment(const kernels::PromptRows& rows, std::int64_t gathered, std::int64_t whole,
                      const TensorView& out, Stream& stream) {
    kernels::BlockMask choice;
    choice.prompt = rows;
    choice.threshold = threshold_;
    choice.dense_rows = whole;
    const std::int64_t row_tiles = choice.row_tiles(), heads = rows.heads();
    choice.tile_counts = TensorView(counts_, DType::i32, {row_tiles, heads});
    choice.tiles = TensorView(tiles_, DType::i32, {row_tiles, heads, choice.token_tiles()});
    choice.workspace =
        TensorView(workspace_, DType::u8, {static_cast<std::int64_t>(sizes_.workspace)});
    choice.gathered = room_for_keys(rows.kv.keys);
    choice.gathered_tokens = gathered;
    kernels::block_mask(choice, stream);

    kernels::SparseAttention attention = sparse_of(rows, out);
    attention.tile_counts = choice.tile_counts;
    attention.tiles = choice.tiles;
    kernels::sparse_attention(attention, stream);
  }

  // Empty if the keys differ from those that it was sized for.
  TensorView room_for_keys(const TensorView& keys) const {
    const TensorView room(gathered_, keys.dtype, {sizes_.tokens, keys.shape[2], keys.shape[3]});
    return room.bytes() == sizes_.gathered ? room : TensorView();
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
  }
  std::size_t bytes() const {
    return columns + offsets + bands + workspace + 2 * counts + ranges + singles +
           8 * Arena::kAlignment;
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
        singles_(arena_.allocate(sizes_.singles, "columns outside ranges")) {}

  const char* name() const override { return "minference"; }

  void run_attention(const PromptAttention& args, Stream& stream) override {
    const std::int64_t heads = args.rows.heads(), rows = args.rows.rows();
    const kernels::VerticalSlashBudget lines = MInference::lines(args.rows.tokens(), budget_);
    kernels::VerticalSlash choice;
    choice.prompt = args.rows;
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
      attend_segment(lists, segment_of(args.rows, first, count), args.out.rows(first, count),
                     stream);
    }
  }

 private:
  void attend_segment(kernels::VerticalSlashIndex lists, const kernels::PromptRows& rows,
                      const TensorView& out, Stream& stream) {
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

    kernels::SparseAttention attention = sparse_of(rows, out);
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
  void *range_counts_, *ranges_, *single_counts_, *singles_;
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
