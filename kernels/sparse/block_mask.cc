#include "kernels/sparse/block_mask.h"

#include "base/error.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("block_mask");

}  // namespace

std::size_t block_mask_workspace(std::int64_t rows, std::int64_t heads, std::int64_t tokens) {
  const std::int64_t strides = (rows + kMaskTile - 1) / kMaskTile * kTileStrides;
  const std::int64_t tiles = (tokens + kMaskTile - 1) / kMaskTile;
  return static_cast<std::size_t>(heads * strides * tiles) * sizeof(float);
}

void check_block_mask(const BlockMask& args) {
  check_prompt_rows(args.prompt, kCheck);
  const std::int64_t heads = args.prompt.heads();
  const std::int64_t capacity = args.tiles.rank == 3 ? args.tiles.shape[2] : 0;
  kCheck.require_dense(args.tiles, "tiles", DType::i32, {args.row_tiles(), heads, capacity});
  kCheck.require_dense(args.tile_counts, "tile_counts", DType::i32, {args.row_tiles(), heads});
  if (capacity < args.token_tiles()) {
    fail("block_mask: tiles is ", args.tiles.describe(), ", but there may be ", args.token_tiles(),
         " of them");
  }
  const std::size_t needed = block_mask_workspace(args.prompt.rows(), heads, args.prompt.tokens());
  if (args.workspace.bytes() < needed || !args.workspace.aligned(sizeof(float))) {
    fail("block_mask: workspace is ", args.workspace.describe(), "; it must be ", needed,
         " bytes for float32");
  }
  if (args.gathered.data != nullptr) {
    const KvView& kv = args.prompt.kv;
    const std::int64_t gathered_capacity = args.gathered.rank == 3 ? args.gathered.shape[0] : 0;
    kCheck.require_dense(args.gathered, "gathered", args.prompt.q.dtype,
                         {gathered_capacity, kv.kv_heads(), kv.head_dim()});
    if (gathered_capacity < args.token_tiles() * kMaskTile || !args.gathered.aligned(16)) {
      fail("block_mask: gathered is ", args.gathered.describe(),
           "; it must have gathered_tokens for ", args.token_tiles() * kMaskTile,
           " tokens, at a multiple of 16 bytes");
    }
    if (args.gathered_tokens < 0 || args.gathered_tokens > args.prompt.tokens()) {
      fail("block_mask: gathered_tokens is ", args.gathered_tokens, " of ", args.prompt.tokens());
    }
  }
  if (args.dense_rows < 0) {
    fail("block_mask: dense_rows is ", args.dense_rows, "; it must be 0 or more");
  }
  if (!(args.threshold > 0 && args.threshold <= 1)) {
    fail("block_mask: threshold is ", args.threshold, "; it must be above 0 and at most 1");
  }
}

void block_mask(const BlockMask& args, Stream& stream) {
  check_block_mask(args);
  if (args.prompt.q.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, block_mask(args, stream));
}

}  // namespace nvllm::kernels
