#include "base/divide.h"
#include "kernels/sparse/block_mask.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/prompt_segments.h"

namespace nvllm::kvcache {
namespace {

constexpr std::int64_t tiles_of(std::int64_t tokens) {
  return divide_up(tokens, kernels::kMaskTile);
}

// What segments need: counts and lists of tiles, the choice's workspace, and room for all keys.
struct Sizes {
  std::int64_t rows;    // of a segment
  std::int64_t tokens;  // that there is room for, if any
  std::size_t counts, tiles, workspace, gathered;

  explicit Sizes(const PromptLimits& limits) {
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

  void attend(const PromptAttention& args, Stream& stream) override {
    const std::int64_t rows = args.rows.rows();
    for (std::int64_t first = 0; first < rows; first += sizes_.rows) {
      const std::int64_t count = std::min(sizes_.rows, rows - first);
      const kernels::PromptRows segment = segment_of(args.rows, first, count);
      const std::int64_t gathered = first == 0 ? 0 : segment.first_position;  // by those before
      const std::int64_t behind = rows - first - count + args.to_come;
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

  // None where keys are not those that it was made for.
  TensorView room_for_keys(const TensorView& keys) const {
    const TensorView room(gathered_, keys.dtype, {sizes_.tokens, keys.shape[2], keys.shape[3]});
    return room.bytes() == sizes_.gathered ? room : TensorView();
  }

  Sizes sizes_;
  float threshold_;
  Arena arena_;
  void *counts_, *tiles_, *workspace_, *gathered_;
};

}  // namespace

std::size_t XAttention::bytes(const PromptLimits& limits) {
  return Sizes(limits).bytes();
}

std::unique_ptr<PromptPolicy> XAttention::create(Backend& backend, const PromptLimits& limits,
                                                 float threshold) {
  return std::make_unique<XAttentionPolicy>(backend, limits, threshold);
}

}  // namespace nvllm::kvcache
