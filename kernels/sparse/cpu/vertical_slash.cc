// Vertical-slash selection of MInference on the CPU: a task for each head.
//
// The estimation rows of a head pass over the keys twice: for their log-sum-exps, and for the sums
// of weights by column and by diagonal. The highest sums are selected by a partial sort. The index
// is a task for each block of rows and head (vertical_slash.h).
#include "kernels/sparse/vertical_slash.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

template <typename T>
float dot(const T* a, const T* b, std::int64_t count) {
  __m256 sum = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    sum = _mm256_fmadd_ps(load8(a + i), load8(b + i), sum);
  }
  return sum8(sum);
}

// The sums of a head, in the workspace.
struct Sums {
  float* by_token;
  float* by_offset;

  Sums(const VerticalSlash& args, std::int64_t head)
      : by_token(args.workspace.as<float>() + head * 2 * args.prompt.tokens()),
        by_offset(by_token + args.prompt.tokens()) {}
};

// Adds up the weights of all estimation rows. Scores are computed token by token, twice.
template <typename T>
void add_weights(const VerticalSlash& args, std::int64_t head, const Sums& sums) {
  const PromptRows& prompt = args.prompt;
  const std::int64_t tokens = prompt.tokens(), estimation_rows = args.estimation_rows();
  const std::int64_t first = prompt.rows() - estimation_rows;
  float row_max[kEstimationRows], total[kEstimationRows] = {};
  std::fill_n(row_max, estimation_rows, kNone);
  std::fill_n(sums.by_token, tokens, 0.0f);
  std::fill_n(sums.by_offset, tokens, 0.0f);
  for (const bool adding : {false, true}) {
    for (std::int64_t j = 0; j < tokens; ++j) {
      const T* k = key_of<T>(prompt, j, prompt.kv_head(head));
      for (std::int64_t i = 0; i < estimation_rows; ++i) {
        const std::int64_t position = prompt.first_position + first + i;
        if (j > position) continue;
        const T* q = query_of<T>(prompt, first + i, head);
        const float score = dot(q, k, prompt.head_dim()) * prompt.scale;
        if (adding) {
          const float weight = std::exp(score - row_max[i]) / total[i];
          sums.by_token[j] += weight;
          sums.by_offset[position - j] += weight;
        } else if (score > row_max[i]) {
          total[i] = total[i] * std::exp(row_max[i] - score) + 1;
          row_max[i] = score;
        } else {
          total[i] += std::exp(score - row_max[i]);
        }
      }
    }
  }
}

void choose(const VerticalSlash& args, std::int64_t head) {
  const Sums sums(args, head);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) { add_weights<T>(args, head, sums); });
  top_k_lines(args, head, sums.by_token, sums.by_offset);
}

void list(const VerticalSlashIndex& args, std::int64_t block, std::int64_t head) {
  const std::int64_t slashes = args.offsets.shape[1], verticals = args.columns.shape[1];
  const auto* bands = args.bands.as<Band>() + head * (slashes + 1);
  const std::int64_t e = args.first_position + (block + 1) * kSlashRows;
  const BlockRanges lines(bands + 1, bands->a, args.offsets.as<std::int32_t>() + head * slashes,
                          static_cast<std::int32_t>(slashes), static_cast<std::int32_t>(e),
                          static_cast<std::int32_t>(std::min(e, args.first_position + args.rows)));
  const std::int64_t at = block * args.heads() + head;
  auto* ranges = args.ranges.as<TokenRange>() + at * args.ranges.shape[2];
  for (std::int32_t i = 0; i < lines.ranges(); ++i) ranges[i] = lines.range(i);
  args.range_counts.as<std::int32_t>()[at] = lines.ranges();
  const auto* columns = args.columns.as<std::int32_t>() + head * verticals;
  auto* singles = args.singles.as<std::int32_t>() + at * verticals;
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < verticals; ++i) {
    if (lines.outside(columns[i])) singles[count++] = columns[i];
  }
  args.single_counts.as<std::int32_t>()[at] = count;
}

}  // namespace

void vertical_slash(const VerticalSlash& args, Stream& stream) {
  submit_tasks(stream, args.prompt.heads(), [args](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) choose(args, head);
  });
}

void slash_bands(const TensorView& bands, const TensorView& offsets, Stream& stream) {
  const std::int64_t slashes = offsets.shape[1];
  nvllm::cpu::stream(stream).submit([to = bands.as<Band>(), from = offsets.as<std::int32_t>(),
                                     heads = offsets.shape[0], slashes] {
    for (std::int64_t head = 0; head < heads; ++head) {
      Band* mine = to + head * (slashes + 1);
      mine[0] = {merge_offsets(from + head * slashes, slashes, mine + 1), 0};
    }
  });
}

void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream) {
  submit_tasks(stream, args.blocks() * args.heads(), [args](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) list(args, i / args.heads(), i % args.heads());
  });
}

}  // namespace nvllm::kernels::cpu
