#include "kernels/sparse/testing/references.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/testing/references.h"
#include "kernels/common/arguments.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels {
namespace {

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
void block_mask_of(const BlockMask& args, double* all_scores) {
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

template <typename T>
void vertical_slash_of(const VerticalSlash& args, std::int64_t head) {
  const PromptRows& prompt = args.prompt;
  const std::int64_t tokens = prompt.tokens(), first = prompt.rows() - args.estimation_rows();
  std::vector<double> by_token(tokens), by_offset(tokens);
  for (std::int64_t row = first; row < prompt.rows(); ++row) {
    const std::int64_t seen = prompt.first_position + row + 1;
    std::vector<double> weights(seen);
    for (std::int64_t j = 0; j < seen; ++j) {
      const T* q = query_of<T>(prompt, row, head);
      const T* k = key_of<T>(prompt, j, prompt.kv_head(head));
      for (std::int64_t d = 0; d < prompt.head_dim(); ++d) {
        weights[j] += double{to_float(q[d])} * to_float(k[d]) * prompt.scale;
      }
    }
    const double row_max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - row_max);
    for (std::int64_t j = 0; j < seen; ++j) {
      by_token[j] += weights[j] / sum;
      by_offset[seen - 1 - j] += weights[j] / sum;
    }
  }
  top_k_lines(args, head, by_token.data(), by_offset.data());
}

// The bounds of one page, of which the first `count` tokens exist.
template <typename T>
void page_bounds_of(const UpdatePageBounds& args, std::int64_t sequence, std::int64_t page,
                    std::int64_t count) {
  const KvView& kv = args.kv;
  const std::int64_t head_dim = kv.head_dim();
  const auto [number, block, inside] = args.locate(sequence, page * args.page_tokens);
  for (std::int64_t head = 0; head < kv.kv_heads(); ++head) {
    T* min_key = args.bounds.as<T>() + (number * kv.kv_heads() + head) * 2 * head_dim;
    T* max_key = min_key + head_dim;
    for (std::int64_t t = 0; t < count; ++t) {
      const T* key = kv.keys.as<T>() + kv.offset(block, inside + t, head);
      for (std::int64_t d = 0; d < head_dim; ++d) {
        if (t == 0 || to_float(key[d]) < to_float(min_key[d])) min_key[d] = key[d];
        if (t == 0 || to_float(key[d]) > to_float(max_key[d])) max_key[d] = key[d];
      }
    }
  }
}

template <typename T, typename Key>
void page_selection_of(const PageSelection& args, std::int64_t sequence, std::int64_t kv_head) {
  const std::int64_t heads = args.q.shape[1], head_dim = args.q.shape[2];
  const std::int64_t kv_heads = args.bounds.shape[1];
  const std::int64_t length = args.kv_length.as<std::int32_t>()[sequence];
  const std::int64_t pages = (length + args.page_tokens - 1) / args.page_tokens;
  constexpr double kAlways = std::numeric_limits<double>::infinity();
  std::vector<double> scores(pages, -kAlways);
  for (std::int64_t page = 0; page < pages; ++page) {
    const Key* min_key = args.bounds.as<Key>() +
                         (args.bounds_of(sequence, page) * kv_heads + kv_head) * 2 * head_dim;
    for (std::int64_t head = 0; head < heads; ++head) {
      if ((args.first_head + head) / args.group != kv_head) continue;
      const T* q = args.q.as<T>() + sequence * args.q.stride[0] + head * head_dim;
      double score = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const double value = to_float(q[d]);
        score += std::max(value * to_float(min_key[d]), value * to_float(min_key[head_dim + d]));
      }
      scores[page] = std::max(scores[page], score);
    }
    if (page == 0 || page == pages - 1) scores[page] = kAlways;
  }
  const std::int64_t count = std::min(pages, args.budget);
  const std::int64_t at = sequence * kv_heads + kv_head;
  std::vector<std::int32_t> order;
  top_k(scores.data(), pages, count, order, args.pages.as<std::int32_t>() + at * args.budget);
  args.page_counts.as<std::int32_t>()[at] = static_cast<std::int32_t>(count);
}

}  // namespace

void block_mask_reference(const BlockMask& args, double* scores) {
  check_block_mask(args);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) { block_mask_of<T>(args, scores); });
}

void vertical_slash_reference(const VerticalSlash& args) {
  check_vertical_slash(args);
  for (std::int64_t head = 0; head < args.prompt.heads(); ++head) {
    with_element_type(args.prompt.q.dtype,
                      [&]<typename T>(T) { vertical_slash_of<T>(args, head); });
  }
}

void update_page_bounds_reference(const UpdatePageBounds& args) {
  check_update_page_bounds(args);
  const auto* starts = args.query_start.as<std::int32_t>();
  with_key_type(args.kv.keys.dtype, [&]<typename T>(T) {
    for (std::int64_t s = 0; s < args.kv_length.shape[0]; ++s) {
      const std::int64_t end = args.kv_length.as<std::int32_t>()[s];
      const std::int64_t begin = std::max<std::int64_t>(0, end - (starts[s + 1] - starts[s]));
      for (std::int64_t t = begin; t < end; ++t) {
        page_bounds_of<T>(args, s, t / args.page_tokens, t % args.page_tokens + 1);
      }
    }
  });
}

void page_selection_reference(const PageSelection& args) {
  check_page_selection(args);
  with_element_type(args.q.dtype, [&]<typename T>(T) {
    for (std::int64_t s = 0; s < args.q.shape[0]; ++s) {
      for (std::int64_t g = 0; g < args.bounds.shape[1]; ++g) {
        args.bounds.dtype == DType::u8 ? page_selection_of<T, E4m3>(args, s, g)
                                       : page_selection_of<T, T>(args, s, g);
      }
    }
  });
}

void sparse_attention_reference(const SparseAttention& args) {
  check_sparse_attention(args);
  const Attention attention_args = args.attention_args();
  for (std::int64_t block = 0; block < args.row_blocks(); ++block) {
    const std::int64_t begin = block * kSparseTile;
    const std::int64_t end = std::min(args.q.shape[0], begin + kSparseTile);
    for (std::int64_t head = 0; head < args.q.shape[1]; ++head) {
      std::vector<std::int32_t> tokens;
      args.find_tokens(begin, end, head, tokens);
      for (std::int64_t row = begin; row < end; ++row) {
        const auto later =
            std::upper_bound(tokens.begin(), tokens.end(), args.first_position + row);
        attend_reference(attention_args, 0, row, head, {tokens.begin(), later});
      }
    }
  }
}

void page_attention_reference(const PageAttention& args) {
  check_page_attention(args);
  const Attention attention_args = args.attention_args();
  for (std::int64_t s = 0; s < args.q.shape[0]; ++s) {
    for (std::int64_t head = 0; head < args.q.shape[1]; ++head) {
      std::vector<std::int32_t> tokens;
      args.find_tokens(s, (args.first_head + head) / args.group, tokens);
      attend_reference(attention_args, s, s, head, tokens);
    }
  }
}

}  // namespace nvllm::kernels
