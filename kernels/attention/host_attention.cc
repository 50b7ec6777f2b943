#include "kernels/attention/host_attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "kernels/attention/cpu/attention_kernels.h"

namespace nvllm::kernels {
namespace {

using cpu::AttentionGroup;
using cpu::AttentionScratch;
using cpu::AttentionTask;

// Tokens of a block that one task takes. It is long enough that its first reads, which no
// prefetcher foresees, cost little, and short enough that the TLB holds the pages of all heads of
// such a run.
constexpr std::int64_t kRunTokens = 512;

// One call. Its tasks are numbered block by block, run by run of kRunTokens tokens, KV head by KV
// head, and tile by tile of a head's rows.
class Run {
 public:
  Run(const HostAttention& args, std::vector<float>& scratch)
      : args_(args),
        shared_{.q = args.q,
                .kv_scales = args.kv_scales,
                .group = args.group,
                .first_head = args.first_head,
                .scale = args.scale},
        head_dim_(args.q.shape[2]),
        heads_(args.q.shape[1]),
        kv_heads_(heads_ == 0 ? 0 : (args.first_head + heads_ - 1) / args.group + 1),
        runs_(divide_up(args.block_tokens, kRunTokens)),
        tiles_(divide_up(std::min(args.group, heads_), cpu::kTileRows)),
        tile_rows_(std::min<std::int64_t>({args.group, heads_, cpu::kTileRows})),
        task_floats_(cpu::partial_floats(tile_rows_, head_dim_)),
        tasks_(static_cast<std::int64_t>(args.blocks.size()) * tasks_of_block()),
        kv_type_(args.of_e4m3 ? DType::u8 : args.q.dtype),
        attend_(cpu::attend_task(args.q.dtype, kv_type_, {})) {
    const auto floats = static_cast<std::size_t>(tasks_ * task_floats_);
    if (scratch.size() < floats) scratch.resize(floats);
    partials_ = scratch.data();
  }

  void operator()(nvllm::cpu::ThreadPool& pool) const {
    pool.run(tasks_, [&](std::int64_t begin, std::int64_t end) {
      AttentionScratch scratch;
      for (std::int64_t task = begin; task < end; ++task) attend(task, scratch);
    });
    pool.run(args_.q.shape[0] * heads_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) combine(head / heads_, head % heads_);
    });
  }

 private:
  std::int64_t tasks_of_block() const { return runs_ * kv_heads_ * tiles_; }

  // The rows of one KV head that this rank owns.
  AttentionGroup group_of(std::int64_t row, std::int64_t kv_head) const {
    return cpu::row_group(shared_, 0, kv_head, row, args_.block_tokens);
  }

  void attend(std::int64_t number, AttentionScratch& scratch) const {
    const std::int64_t tile = number % tiles_, kv_head = number / tiles_ % kv_heads_,
                       run = number / (tiles_ * kv_heads_) % runs_;
    const HostAttentionBlock& block =
        args_.blocks[static_cast<std::size_t>(number / tasks_of_block())];
    const AttentionGroup group = group_of(block.row, kv_head);
    AttentionTask task{};
    task.first_row = tile * cpu::kTileRows;
    if (task.first_row >= group.group_heads) return;
    task.rows = static_cast<std::int32_t>(
        std::min<std::int64_t>(cpu::kTileRows, group.group_heads - task.first_row));
    task.first_token = run * kRunTokens;
    task.end_token = std::min(args_.block_tokens, task.first_token + kRunTokens);
    task.partial = partials_ + number * task_floats_;
    attend_(attention_to(block), group, task, scratch);
  }

  // Arguments of attention to one block, which stands for a whole sequence.
  Attention attention_to(const HostAttentionBlock& block) const {
    const auto tensor = [&](std::int64_t offset) {
      return TensorView(const_cast<unsigned char*>(block.data) + offset, kv_type_,
                        {1, args_.block_tokens, args_.kv_heads, head_dim_});
    };
    Attention attention = shared_;
    attention.kv = {.keys = tensor(args_.keys), .values = tensor(args_.values), .block_table = {}};
    return attention;
  }

  void combine(std::int64_t row, std::int64_t head) const {
    const auto [first, last] =
        std::equal_range(args_.blocks.begin(), args_.blocks.end(),
                         HostAttentionBlock{static_cast<std::int32_t>(row), nullptr},
                         [](const auto& a, const auto& b) { return a.row < b.row; });
    const std::int64_t kv_head = (args_.first_head + head) / args_.group;
    const AttentionGroup group = group_of(row, kv_head);
    const std::int64_t packed = head - group.first_head, tile = packed / cpu::kTileRows;
    const std::int64_t step = kv_heads_ * tiles_;
    const std::int64_t begin =
        (first - args_.blocks.begin()) * tasks_of_block() + kv_head * tiles_ + tile;
    // The task has its own number of rows, by which its memory is laid out.
    const std::int64_t rows =
        std::min<std::int64_t>(cpu::kTileRows, group.group_heads - tile * cpu::kTileRows);
    const auto task = [&](std::int64_t i) {
      return cpu::partial_rows(partials_ + (begin + i * step) * task_floats_, rows, head_dim_);
    };
    const std::int64_t at = row * heads_ + head;
    cpu::CombinedRow combined(args_.out.as<float>() + at * head_dim_, head_dim_);
    for (std::int64_t i = 0; i < (last - first) * runs_; ++i)
      combined.add(task(i), packed % cpu::kTileRows);
    args_.lse.as<float>()[at] =
        combined.finish(args_.of_e4m3 ? value_scale(args_.kv_scales, kv_head) : 1.0f);
  }

  const HostAttention& args_;
  const Attention shared_;  // what the blocks have in common
  const std::int64_t head_dim_, heads_, kv_heads_, runs_, tiles_, tile_rows_, task_floats_, tasks_;
  const DType kv_type_;
  const cpu::AttendTask attend_;
  float* partials_ = nullptr;
};

}  // namespace

void host_attention(const HostAttention& args, nvllm::cpu::ThreadPool& pool,
                    std::vector<float>& scratch) {
  NVLLM_CHECK(args.out.dtype == DType::f32 && args.out.contiguous() && args.lse.contiguous());
  NVLLM_CHECK(args.out.shape == args.q.shape);
  NVLLM_CHECK(args.block_tokens > 0 || args.blocks.empty());
  if (args.q.elements() == 0) return;
  Run(args, scratch)(pool);
}

}  // namespace nvllm::kernels
