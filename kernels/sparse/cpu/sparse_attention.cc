// Sparse attention on the CPU, of a prompt's rows and of decode rows: it expands the lists of
// tokens and runs the tasks of dense attention (kernels/attention/cpu/attention_kernels.h) on them.
//
// A prompt's rows are taken 64 of a head at a time, in descending order; decode rows one KV head of
// a sequence at a time. No bit depends on the number of threads. Launchers: sparse_attention() and
// page_attention(), at the end.
#include "kernels/sparse/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/attention/cpu/attention_kernels.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::ThreadPool;

static_assert(kSparseTile % kTileRows == 0);

// Rows [begin, end) of a head, which share their lists.
struct HeadRows {
  std::int64_t head, begin, end;
};

class PromptRun {
 public:
  PromptRun(const SparseAttention& args, AttendTask attend)
      : args_(args), shared_(args.attention_args()), attend_(attend) {}

  void operator()(ThreadPool& pool) const {
    const std::int64_t tiles = (args_.q.shape[0] + kTileRows - 1) / kTileRows;
    const std::int64_t heads = args_.q.shape[1];
    pool.run(tiles * heads, [&](std::int64_t begin, std::int64_t end) {
      AttentionScratch scratch;
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = begin; i < end; ++i) {
        // The last rows see the most tokens, so they start first.
        const std::int64_t first = (tiles - 1 - i / heads) * kTileRows;
        const std::int64_t last = std::min(first + kTileRows, args_.q.shape[0]);
        attend({i % heads, first, last}, tokens, scratch);
      }
    });
  }

 private:
  void attend(const HeadRows& rows, std::vector<std::int32_t>& tokens,
              AttentionScratch& scratch) const {
    find_tokens(rows, tokens);
    AttentionGroup group{};
    group.kv_head = (args_.first_head + rows.head) / args_.group;
    group.first_row = rows.begin;
    group.rows = rows.end - rows.begin;
    group.first_head = rows.head;
    group.group_heads = 1;
    group.tokens = args_.first_position + rows.end;
    group.first_visible = args_.first_position + rows.begin + 1;
    const AttentionTask task{.sequence = 0,
                             .kv_head = static_cast<std::int32_t>(group.kv_head),
                             .rows = static_cast<std::int32_t>(group.rows),
                             .first_row = 0,
                             .first_token = 0,
                             .end_token = static_cast<std::int64_t>(tokens.size()),
                             .partial = nullptr,
                             .list = tokens.data()};
    attend_(shared_, group, task, scratch);
  }

  // The selected tokens that are not after the last of the rows, ascending.
  void find_tokens(const HeadRows& rows, std::vector<std::int32_t>& tokens) const {
    tokens.clear();
    const std::int64_t token_end = args_.first_position + rows.end;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < std::min(end, token_end); ++t) {
        tokens.push_back(static_cast<std::int32_t>(t));
      }
    };
    const std::int64_t list = rows.begin / kSparseTile * args_.q.shape[1] + rows.head;
    if (args_.by_tiles()) {
      const auto* tiles = args_.tiles.as<std::int32_t>() + list * args_.tiles.shape[2];
      for (int i = 0; i < args_.tile_counts.as<std::int32_t>()[list]; ++i) {
        add(tiles[i] * kSparseTile, (tiles[i] + 1) * kSparseTile);
      }
      return;
    }
    const auto* ranges = args_.ranges.as<std::int32_t>() + list * args_.ranges.shape[2] * 2;
    const auto* columns = args_.columns.as<std::int32_t>() + list * args_.columns.shape[2];
    const auto* end_column = columns + args_.column_counts.as<std::int32_t>()[list];
    for (int i = 0; i < args_.range_counts.as<std::int32_t>()[list]; ++i) {
      for (; columns != end_column && *columns < ranges[2 * i]; ++columns)
        add(*columns, *columns + 1);
      add(ranges[2 * i], ranges[2 * i + 1]);
    }
    for (; columns != end_column; ++columns) add(*columns, *columns + 1);
  }

  const SparseAttention& args_;
  const Attention shared_;
  const AttendTask attend_;
};

class PageRun {
 public:
  PageRun(const PageAttention& args, AttendTask attend)
      : args_(args), shared_(args.attention_args()), attend_(attend) {}

  void operator()(nvllm::cpu::ThreadPool& pool) const {
    const std::int64_t kv_heads = args_.kv_heads();
    pool.run(args_.q.shape[0] * kv_heads, [&](std::int64_t begin, std::int64_t end) {
      AttentionScratch scratch;
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = begin; i < end; ++i) {
        attend(i / kv_heads, i % kv_heads, tokens, scratch);
      }
    });
  }

 private:
  void attend(std::int64_t sequence, std::int64_t kv_head, std::vector<std::int32_t>& tokens,
              AttentionScratch& scratch) const {
    args_.find_tokens(sequence, kv_head, tokens);
    AttentionGroup group{};
    group.sequence = sequence;
    group.kv_head = kv_head;
    group.first_row = sequence;
    group.rows = 1;
    group.first_head = std::max<std::int64_t>(0, kv_head * args_.group - args_.first_head);
    group.group_heads = std::min(args_.q.shape[1], (kv_head + 1) * args_.group - args_.first_head) -
                        group.first_head;
    group.tokens = group.first_visible = args_.kv_length.as<std::int32_t>()[sequence];
    AttentionTask task{.sequence = static_cast<std::int32_t>(sequence),
                       .kv_head = static_cast<std::int32_t>(kv_head),
                       .rows = 0,
                       .first_row = 0,
                       .first_token = 0,
                       .end_token = static_cast<std::int64_t>(tokens.size()),
                       .partial = nullptr,
                       .list = tokens.data()};
    for (; task.first_row < group.packed_rows(); task.first_row += kTileRows) {
      task.rows = static_cast<std::int32_t>(
          std::min<std::int64_t>(kTileRows, group.packed_rows() - task.first_row));
      attend_(shared_, group, task, scratch);
    }
  }

  const PageAttention& args_;
  const Attention shared_;
  const AttendTask attend_;
};

}  // namespace

void sparse_attention(const SparseAttention& args, Stream& stream) {
  const AttendTask attend = attend_task(args.q.dtype, {});
  auto& queue = nvllm::cpu::stream(stream);
  queue.submit([args, attend, &pool = queue.thread_pool()] { PromptRun(args, attend)(pool); });
}

void page_attention(const PageAttention& args, Stream& stream) {
  const AttendTask attend = attend_task(args.q.dtype, {});
  auto& queue = nvllm::cpu::stream(stream);
  queue.submit([args, attend, &pool = queue.thread_pool()] { PageRun(args, attend)(pool); });
}

}  // namespace nvllm::kernels::cpu
