#include "runtime/engine_setup.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "runtime/memory_plan.h"
#include "runtime/model_loading.h"

namespace nvllm::runtime {
namespace {

// Logit rows of a step beside one per sequence: so many of a prompt's own log-probabilities are computed
// at a time. Each takes a float per token of the vocabulary.
constexpr std::int64_t kPromptLogitRows = 64;

RunnerOptions runner_options(const EngineOptions& options, std::int64_t max_model_len) {
  return {
      .max_model_len = max_model_len,
      .max_num_seqs = options.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .max_logit_rows =
          std::min(options.max_num_batched_tokens, options.max_num_seqs + kPromptLogitRows),
      .block_size = options.block_size,
      .graphs = options.graphs,
      .keeps_results = false,
      .steps_ahead = options.async_scheduling ? 2 : 1,
      .kv_mode = options.kv_mode(),
      .ring_slots = options.ring_slots,
      .kv_buffers = options.kv_buffers,
  };
}

SchedulerLimits scheduler_limits(const EngineOptions& options, const RunnerOptions& runner,
                                 const MemoryPlan& plan) {
  return {
      .max_model_len = plan.max_model_len,
      .max_num_seqs = plan.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .max_logit_rows = runner.max_logit_rows,
      .blocks = plan.blocks,
      .block_size = options.block_size,
      .host_blocks = plan.host_blocks,
      .prefix_caching = options.prefix_caching,
      .scheduling = options.scheduling,
      .preemption = options.preemption,
  };
}

}  // namespace

EngineSetup set_up_engine(const EngineOptions& asked, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::FrontDesk& desk, const EngineRank& own) {
  const std::int64_t model_limit = own.model().config.max_position_embeddings;
  const EngineOptions options = settled(asked, model_limit);
  const RunnerOptions runner = runner_options(options, wanted_model_len(options, model_limit));
  caller.call<void>("make_runner", runner, options.profile);
  ModelLoading loading(me, caller, desk);
  loading.await_all();

  const auto memory = caller.call<RankMemory>("engine_memory");
  MemoryPlan plan = plan_memory(options, model_limit, own.device(), memory);
  caller.call<void>("make_cache", plan.blocks, plan.host_blocks, plan.write_slots);

  EngineSetup setup;
  setup.limits = scheduler_limits(options, runner, plan);
  EngineInfo& info = setup.info;
  info.kv_mode = options.kv_mode();
  info.max_model_len = plan.max_model_len;
  info.blocks = plan.blocks;
  info.block_size = options.block_size;
  info.host_blocks = plan.host_blocks;
  for (const RankMemory& rank : memory) {
    info.kv_bytes_per_token += rank.block / static_cast<std::uint64_t>(options.block_size);
  }
  info.ranks = loading.report();
  for (const RankLoad& rank : info.ranks) info.weight_bytes += rank.times.bytes_loaded;
  info.notes = std::move(plan.notes);
  return setup;
}

}  // namespace nvllm::runtime
