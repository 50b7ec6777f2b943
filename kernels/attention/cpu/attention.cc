// Attention on the CPU: how the work is divided into tasks for the threads.
//
// A task is a tile of packed rows (attention_kernels.h) and the tokens that they see. Where a
// sequence has no more rows than one tile, as in decode, each segment of its tokens is a task
// (split-KV), and the partial results are combined in a second pass, in the order in which a task
// of many segments combines them. So no bit depends on the number of threads, on other sequences or
// on how many of a sequence's rows are computed at once. attention_tile.cc runs a task.
#include <algorithm>
#include <limits>
#include <vector>

#include "base/math.h"
#include "device/cpu/stream.h"
#include "kernels/attention/backends.h"
#include "kernels/attention/cpu/attention_kernels.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::ThreadPool;

// Limits of what is planned before it runs: a few MiB per stream.
constexpr std::int64_t kPlannedParts = 32768;
constexpr std::int64_t kPlannedFloats = 128 * partial_floats(kTileRows, kMaxHeadDim);

// The tasks [first, first + count), whose partial results over the same rows are combined: of all
// segments of a sequence, or of some, which are added to `state`, a partial result.
struct SplitRange {
  std::int64_t first, count;
  bool begins, ends;  // with the sequence
  float* state;
};

template <typename T>
void combine(const Attention& args, const AttentionTask* tasks, const SplitRange& range) {
  const AttentionTask& task = *tasks;
  const AttentionGroup group = attention_group(args, task.sequence, task.kv_head);
  const std::int64_t head_dim = args.q.shape[2];
  const bool of_e4m3 = args.kv.keys.dtype != args.q.dtype;
  const float scale = of_e4m3 ? value_scale(args.kv_scales, task.kv_head) : 1;
  for (std::int64_t row = 0; row < task.rows; ++row) {
    const std::int64_t packed = task.first_row + row;
    float out[kMaxHeadDim];
    CombinedRow combined(out, head_dim);
    if (!range.begins) combined.add(partial_rows(range.state, task.rows, head_dim), row);
    for (std::int64_t i = 0; i < range.count; ++i) {
      // A segment that the row sees nothing of adds nothing, nor does it round.
      if (tasks[i].first_token > 0 && tasks[i].first_token >= group.visible(packed)) break;
      combined.add(partial_rows(tasks[i].partial, task.rows, head_dim), row);
    }
    if (!range.ends) {
      combined.store(partial_rows(range.state, task.rows, head_dim), row);
      continue;
    }
    const float lse = combined.finish(scale, sink_of(args, group.head(packed)));
    T* to = args.out.as<T>() + group.in_out(args, packed);
    for (std::int64_t d = 0; d < head_dim; ++d) to[d] = from_float<T>(out[d]);
    if (args.lse.data != nullptr) args.lse.as<float>()[group.in_lse(args, packed)] = lse;
  }
}

// One call. Its plan lies in memory of the stream's thread, which keeps it for the next call.
class Run {
 public:
  Run(const Attention& args, AttendTask attend, ThreadPool& pool)
      : args_(args), attend_(attend), pool_(pool) {}

  void operator()() {
    plan_.clear();
    const std::int64_t heads = args_.q.shape[1];
    const std::int64_t kv_heads = (args_.first_head + heads - 1) / args_.group + 1;
    for (std::int64_t s = 0; s < args_.kv_length.shape[0]; ++s) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        plan(attention_group(args_, s, kv_head));
      }
    }
    flush();
  }

 private:
  struct Plan {
    std::vector<AttentionTask> tasks;
    std::vector<SplitRange> combines;
    std::vector<float> floats;
    std::int64_t floats_used = 0;

    void clear() { tasks.clear(), combines.clear(), floats_used = 0; }
  };

  void plan(const AttentionGroup& group) {
    const std::int64_t rows = group.packed_rows();
    if (rows == 0) return;
    AttentionTask task{.sequence = static_cast<std::int32_t>(group.sequence),
                       .kv_head = static_cast<std::int32_t>(group.kv_head),
                       .rows = static_cast<std::int32_t>(rows),
                       .end_token = group.tokens};
    task.first_token = segment_start(group.first_seen(0));
    if (rows <= kTileRows && group.tokens - task.first_token > kSegmentTokens) {
      return plan_segments(task);
    }
    // The last rows see the most tokens, so they start first.
    for (std::int64_t tile = divide_up(rows, kTileRows) - 1; tile >= 0; --tile) {
      task.first_row = tile * kTileRows;
      task.rows =
          static_cast<std::int32_t>(std::min<std::int64_t>(kTileRows, rows - task.first_row));
      task.first_token = segment_start(group.first_seen(task.first_row));
      reserve(1, 0);
      plan_.tasks.push_back(task);
    }
  }

  // A task for each segment, as many of them at a time as may be planned.
  void plan_segments(AttentionTask task) {
    // Those that no row sees, since they are before its window, are none of them.
    const std::int64_t segments = divide_up(task.end_token - task.first_token, kSegmentTokens);
    const std::int64_t floats = partial_floats(task.rows, args_.q.shape[2]);
    const std::int64_t at_once = std::min(kPlannedParts, kPlannedFloats / floats - 1);
    for (std::int64_t first = 0; first < segments; first += at_once) {
      // So that `state` is the first of what is planned, each time.
      if (at_once < segments) flush();
      plan_some_segments(task, first, std::min(at_once, segments - first), floats);
    }
  }

  // Those from the task's segment `first` on.
  void plan_some_segments(AttentionTask task, std::int64_t first, std::int64_t count,
                          std::int64_t floats) {
    const std::int64_t tokens = task.end_token, begin = task.first_token;
    reserve(count, (count + 1) * floats);
    const auto take = [&] {
      float* taken = plan_.floats.data() + plan_.floats_used;
      plan_.floats_used += floats;
      return taken;
    };
    plan_.combines.push_back({.first = static_cast<std::int64_t>(plan_.tasks.size()),
                              .count = count,
                              .begins = first == 0,
                              .ends = begin + (first + count) * kSegmentTokens >= tokens,
                              .state = take()});
    for (std::int64_t i = first; i < first + count; ++i) {
      task.first_token = begin + i * kSegmentTokens;
      task.end_token = std::min(tokens, task.first_token + kSegmentTokens);
      task.partial = take();
      plan_.tasks.push_back(task);
    }
  }

  void reserve(std::int64_t tasks, std::int64_t floats) {
    if (plan_.floats.empty() && floats > 0) plan_.floats.resize(kPlannedFloats);
    const bool fits = static_cast<std::int64_t>(plan_.tasks.size()) + tasks <= kPlannedParts &&
                      plan_.floats_used + floats <= kPlannedFloats;
    if (!fits) flush();
  }

  // Runs what is planned and clears the plan.
  void flush() {
    const Plan& plan = plan_;
    pool_.run(
        static_cast<std::int64_t>(plan.tasks.size()), [&](std::int64_t begin, std::int64_t end) {
          AttentionScratch scratch;
          for (std::int64_t i = begin; i < end; ++i) {
            const AttentionTask& task = plan.tasks[i];
            attend_(args_, attention_group(args_, task.sequence, task.kv_head), task, scratch);
          }
        });
    pool_.run(static_cast<std::int64_t>(plan.combines.size()),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) combine_splits(plan.combines[i]);
              });
    plan_.clear();
  }

  void combine_splits(const SplitRange& combine) const {
    const AttentionTask* tasks = &plan_.tasks[combine.first];
    with_element_type(args_.out.dtype,
                      [&]<typename T>(T) { cpu::combine<T>(args_, tasks, combine); });
  }

  static Plan& plan_of_this_thread() {
    thread_local Plan plan;
    return plan;
  }

  const Attention& args_;
  const AttendTask attend_;
  ThreadPool& pool_;
  Plan& plan_ = plan_of_this_thread();
};

}  // namespace

float sink_of(const Attention& args, std::int64_t head) {
  if (args.sinks.data == nullptr) return -std::numeric_limits<float>::infinity();
  return with_element_type(args.sinks.dtype,
                           [&]<typename T>(T) { return to_float(args.sinks.as<T>()[head]); });
}

AttentionGroup attention_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head) {
  const auto* start = args.query_start.as<std::int32_t>() + sequence;
  const std::int64_t length = args.kv_length.as<std::int32_t>()[sequence];
  AttentionGroup group = row_group(args, sequence, kv_head, start[0], length);
  group.rows = start[1] - start[0];
  group.first_visible = args.visible.data == nullptr ? length - group.rows + 1
                                                     : args.visible.as<std::int32_t>()[sequence];
  group.tokens = std::clamp<std::int64_t>(group.first_visible + group.rows - 1, 0, length);
  group.window = args.window;
  return group;
}

AttentionGroup row_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head,
                         std::int64_t row, std::int64_t tokens) {
  const std::int64_t first_head = std::max<std::int64_t>(0, kv_head * args.group - args.first_head);
  const std::int64_t end_head =
      std::min(args.q.shape[1], (kv_head + 1) * args.group - args.first_head);
  return {.sequence = sequence,
          .kv_head = kv_head,
          .first_row = row,
          .rows = 1,
          .first_head = first_head,
          .group_heads = end_head - first_head,
          .tokens = tokens,
          .first_visible = tokens};
}

AttendTask attend_task(DType type, DType kv_type, std::optional<InstructionSet> set) {
  const InstructionSet best = instruction_sets().back();
  const bool wide = std::min(set.value_or(best), best) >= InstructionSet::avx512;
  return wide ? attend_task_avx512(type, kv_type) : attend_task_avx2(type, kv_type);
}

void attention(const Attention& args, Stream& stream, std::optional<InstructionSet> set) {
  const AttendTask attend = attend_task(args.q.dtype, args.kv.keys.dtype, set);
  auto& queue = nvllm::cpu::stream(stream);
  queue.submit([args, attend, &pool = queue.thread_pool()] { Run(args, attend, pool)(); });
}

}  // namespace nvllm::kernels::cpu
