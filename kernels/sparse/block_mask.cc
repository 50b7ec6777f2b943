#include "kernels/sparse/block_mask.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("block_mask");

// S[i][j] of a head.
template <typename T>
double strided_score(const PromptRows& prompt, std::int64_t head, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t t = 0; t < kStride; ++t) {
    const std::int64_t row = kStride * i + kStride - 1 - t, token = kStride * j + t;
    if (row >= prompt.rows() || token >= prompt.tokens()) continue;
    const T* q = query_of<T>(prompt, row, head);
    const T* k = key_of<T>(prompt, token, prompt.kv_head(head));
    for (std::int64_t d = 0; d < prompt.head_dim(); ++d)
      sum += double{to_float(q[d])} * to_float(k[d]);
  }
  return sum;
}

// Adds the strided row's softmax to the scores of its tile.
template <typename T>
void add_strided_row(const PromptRows& prompt, std::int64_t head, std::int64_t i,
                     std::vector<double>& scores) {
  const std::int64_t end = std::min(kStride * (i + 1), prompt.rows());
  const std::int64_t seen = (prompt.first_position + end - 1) / kStride + 1;
  std::vector<double> weights(seen);
  for (std::int64_t j = 0; j < seen; ++j) {
    weights[j] = strided_score<T>(prompt, head, i, j) * prompt.scale / kStride;
  }
  const double row_max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - row_max);
  for (std::int64_t j = 0; j < seen; ++j) scores[j / kTileStrides] += weights[j] / sum;
}

template <typename T>
void reference(const BlockMask& args, double* all_scores) {
  const PromptRows& prompt = args.prompt;
  std::vector<std::int32_t> order;
  for (std::int64_t tile = 0; tile < args.row_tiles(); ++tile) {
    const TileReach reach(prompt.first_position, prompt.rows(), tile);
    const std::int64_t strides = (prompt.rows() + kStride - 1) / kStride;
    for (std::int64_t head = 0; head < prompt.heads(); ++head) {
      std::vector<double> scores(args.token_tiles());
      const std::int64_t end = std::min((tile + 1) * kTileStrides, strides);
      for (std::int64_t i = tile * kTileStrides; i < end; ++i) {
        add_strided_row<T>(prompt, head, i, scores);
      }
      const std::int64_t at = tile * prompt.heads() + head;
      args.tile_counts.as<std::int32_t>()[at] =
          top_p_tiles(scores.data(), reach, args.threshold_of(tile), order,
                      args.tiles.as<std::int32_t>() + at * args.tiles.shape[2]);
      if (all_scores == nullptr) continue;
      std::copy(scores.begin(), scores.end(), all_scores + at * args.token_tiles());
    }
  }
}

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

void block_mask_reference(const BlockMask& args, double* scores) {
  check_block_mask(args);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) { reference<T>(args, scores); });
}

}  // namespace nvllm::kernels
