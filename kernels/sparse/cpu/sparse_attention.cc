// Sparse attention on the CPU, of a prompt's rows and of decode rows: it expands the lists of
// tokens and runs the tasks of dense attention (kernels/attention/cpu/attention_kernels.h) on them.
//
// A prompt's rows are taken 64 of a head at a time, in descending order; decode rows one KV head of
// a sequence at a time. No bit depends on the number of threads.
#include "kernels/sparse/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/cpu/attention_kernels.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels::cpu {
namespace {

static_assert(kSparseTile % kTileRows == 0);

class PromptJob {
 public:
  explicit PromptJob(const SparseAttention& args)
      : args_(args),
        shared_(args.attention_args()),
        attend_(attend_task(args.q.dtype, args.kv.keys.dtype, {})),
        tiles_((args.q.shape[0] + kTileRows - 1) / kTileRows) {}

  std::int64_t tasks() const { return tiles_ * args_.q.shape[1]; }

  void operator()(std::int64_t begin, std::int64_t end) const {
    AttentionScratch scratch;
    std::vector<std::int32_t> tokens;
    const std::int64_t heads = args_.q.shape[1];
    for (std::int64_t i = begin; i < end; ++i) {
      // The last rows see the most tokens, so they start first.
      const std::int64_t row = (tiles_ - 1 - i / heads) * kTileRows;
      attend(row, std::min(row + kTileRows, args_.q.shape[0]), i % heads, tokens, scratch);
    }
  }

 private:
  // Rows [begin, end) of a head, which share their lists.
  void attend(std::int64_t begin, std::int64_t end, std::int64_t head,
              std::vector<std::int32_t>& tokens, AttentionScratch& scratch) const {
    args_.find_tokens(begin, end, head, tokens);
    const AttentionGroup group{.sequence = 0,
                               .kv_head = (args_.first_head + head) / args_.group,
                               .first_row = begin,
                               .rows = end - begin,
                               .first_head = head,
                               .group_heads = 1,
                               .tokens = args_.first_position + end,
                               .first_visible = args_.first_position + begin + 1};
    const AttentionTask task{.rows = static_cast<std::int32_t>(group.rows),
                             .end_token = static_cast<std::int64_t>(tokens.size()),
                             .list = tokens.data()};
    attend_(shared_, group, task, scratch);
  }

  SparseAttention args_;
  Attention shared_;
  AttendTask attend_;
  std::int64_t tiles_;
};

class PageJob {
 public:
  explicit PageJob(const PageAttention& args)
      : args_(args),
        shared_(args.attention_args()),
        attend_(attend_task(args.q.dtype, args.kv.keys.dtype, {})) {}

  void operator()(std::int64_t begin, std::int64_t end) const {
    AttentionScratch scratch;
    std::vector<std::int32_t> tokens;
    const std::int64_t kv_heads = args_.kv_heads();
    for (std::int64_t i = begin; i < end; ++i) {
      attend(i / kv_heads, i % kv_heads, tokens, scratch);
    }
  }

 private:
  void attend(std::int64_t sequence, std::int64_t kv_head, std::vector<std::int32_t>& tokens,
              AttentionScratch& scratch) const {
    args_.find_tokens(sequence, kv_head, tokens);
    const AttentionGroup group = row_group(shared_, sequence, kv_head, sequence,
                                           args_.kv_length.as<std::int32_t>()[sequence]);
    AttentionTask task{.end_token = static_cast<std::int64_t>(tokens.size()),
                       .list = tokens.data()};
    for (; task.first_row < group.packed_rows(); task.first_row += kTileRows) {
      task.rows = static_cast<std::int32_t>(
          std::min<std::int64_t>(kTileRows, group.packed_rows() - task.first_row));
      attend_(shared_, group, task, scratch);
    }
  }

  PageAttention args_;
  Attention shared_;
  AttendTask attend_;
};

}  // namespace

void sparse_attention(const SparseAttention& args, Stream& stream) {
  const PromptJob job(args);
  submit_tasks(stream, job.tasks(), job);
}

void page_attention(const PageAttention& args, Stream& stream) {
  submit_tasks(stream, args.q.shape[0] * args.kv_heads(), PageJob(args));
}

}  // namespace nvllm::kernels::cpu
