// The block mask of XAttention on the CPU: a task for each tile of rows and head.
//
// A task computes the strided scores of its rows with one tile of tokens after the other, by FMAs
// on eight lanes, and keeps of them only a log-sum-exp per strided row and tile of tokens, in the
// workspace. From these it computes the scores of tiles and selects tiles by selection.h.
#include "kernels/sparse/block_mask.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

template <typename T>
class TileTask {
 public:
  TileTask(const BlockMask& args, std::int64_t tile, std::int64_t head)
      : args_(args),
        prompt_(args.prompt),
        tile_(tile),
        head_(head),
        reach_(prompt_.first_position, prompt_.rows(), tile),
        rows_(std::min(kMaskTile, prompt_.rows() - tile * kMaskTile)),
        sums_(args.workspace.as<float>() +
              (head * args.row_tiles() + tile) * kTileStrides * args.token_tiles()) {}

  void run(std::vector<std::int32_t>& order, std::vector<float>& scratch) {
    for (std::int64_t tokens = 0; tokens < reach_.tiles; ++tokens) score(tokens);
    scratch.assign(reach_.tiles, 0);
    for (std::int64_t i = 0; i < strides(); ++i) add_softmax(i, scratch.data());
    const std::int64_t at = tile_ * prompt_.heads() + head_;
    args_.tile_counts.as<std::int32_t>()[at] =
        top_p_tiles(scratch.data(), reach_, args_.threshold_of(tile_), order,
                    args_.tiles.as<std::int32_t>() + at * args_.tiles.shape[2]);
  }

 private:
  std::int64_t strides() const { return (rows_ + kStride - 1) / kStride; }
  // How many strided tokens strided row i sees.
  std::int64_t seen(std::int64_t i) const {
    const std::int64_t end = tile_ * kMaskTile + std::min(kStride * (i + 1), rows_);
    return (prompt_.first_position + end - 1) / kStride + 1;
  }

  // The log-sum-exps of all strided rows over a tile of tokens.
  void score(std::int64_t tokens) {
    const T* keys[kMaskTile];
    const std::int64_t first = tokens * kMaskTile;
    const std::int64_t count = std::min(kMaskTile, prompt_.tokens() - first);
    for (std::int64_t t = 0; t < count; ++t) {
      keys[t] = key_of<T>(prompt_, first + t, prompt_.kv_head(head_));
    }
    for (std::int64_t i = 0; i < strides(); ++i) {
      const std::int64_t mine =
          std::clamp<std::int64_t>(seen(i) - tokens * kTileStrides, 0, kTileStrides);
      float scores[kTileStrides], row_max = kNone;
      for (std::int64_t j = 0; j < mine; ++j) {
        scores[j] = strided(i, keys, j, count) * (prompt_.scale / kStride);
        row_max = std::max(row_max, scores[j]);
      }
      float sum = 0;
      for (std::int64_t j = 0; j < mine; ++j) sum += std::exp(scores[j] - row_max);
      sums_[i * args_.token_tiles() + tokens] = mine == 0 ? kNone : row_max + std::log(sum);
    }
  }

  float strided(std::int64_t i, const T* const* keys, std::int64_t j, std::int64_t count) const {
    __m256 sum = _mm256_setzero_ps();
    for (std::int64_t t = 0; t < kStride; ++t) {
      const std::int64_t row = kStride * i + kStride - 1 - t, token = kStride * j + t;
      if (row >= rows_ || token >= count) continue;
      const T* q = query_of<T>(prompt_, tile_ * kMaskTile + row, head_);
      for (std::int64_t d = 0; d < prompt_.head_dim(); d += kLanes) {
        sum = _mm256_fmadd_ps(load8(q + d), load8(keys[token] + d), sum);
      }
    }
    return sum8(sum);
  }

  void add_softmax(std::int64_t i, float* scores) const {
    const float* sums = sums_ + i * args_.token_tiles();
    float row_max = kNone;
    for (std::int64_t t = 0; t < reach_.tiles; ++t) row_max = std::max(row_max, sums[t]);
    float total = 0;
    for (std::int64_t t = 0; t < reach_.tiles; ++t) total += std::exp(sums[t] - row_max);
    for (std::int64_t t = 0; t < reach_.tiles; ++t)
      scores[t] += std::exp(sums[t] - row_max) / total;
  }

  const BlockMask& args_;
  const PromptRows& prompt_;
  std::int64_t tile_, head_;
  TileReach reach_;
  std::int64_t rows_;
  float* sums_;
};

template <typename T>
void run_tasks(const BlockMask& args, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> order;
  std::vector<float> scratch;
  for (std::int64_t task = begin; task < end; ++task) {
    TileTask<T>(args, task / args.prompt.heads(), task % args.prompt.heads()).run(order, scratch);
  }
}

}  // namespace

void block_mask(const BlockMask& args, Stream& stream) {
  submit_tasks(stream, args.row_tiles() * args.prompt.heads(),
               [args](std::int64_t begin, std::int64_t end) {
                 with_element_type(args.prompt.q.dtype,
                                   [&]<typename T>(T) { run_tasks<T>(args, begin, end); });
               });
}

}  // namespace nvllm::kernels::cpu
