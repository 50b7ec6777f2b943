#include "runtime/engine_setup.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "runtime/engine_products.h"
#include "runtime/host_attention_options.h"
#include "runtime/memory_plan.h"
#include "runtime/model_loading.h"
#include "runtime/sparse_attention.h"

namespace nvllm::runtime {
namespace {

// Logit rows of a step beside one per sequence: so many of a prompt's own log-probabilities are computed
// at a time. Each takes a float per token of the vocabulary.
constexpr std::int64_t kPromptLogitRows = 64;

// Where no prompt can be long enough for it, `auto` is full.
SparseAttentionOptions sparse_options(const EngineOptions& options, std::int64_t max_model_len) {
  SparseAttentionOptions sparse{options.prefill_attention, options.decode_attention};
  const bool never = max_model_len < kAutomaticSparseTokens;
  if (sparse.prefill == PrefillAttention::automatic && never) {
    sparse.prefill = PrefillAttention::full;
  }
  return sparse;
}

// part_rows: of a mode that takes whole prompts through one layer after the other.
RunnerOptions runner_options(const EngineOptions& options, std::int64_t max_model_len,
                             std::int64_t part_rows) {
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
      .host_attention = options.host_attention,
      .host_threads = options.host_threads,
      .kv_buffers = options.kv_buffers,
      .sparse = sparse_options(options, max_model_len),
      .part_rows = options.kv_mode() == KvMode::layerwise ? part_rows : 0,
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
      .resident_blocks = plan.resident_blocks,
      .chunked_seqs = plan.chunked_seqs,
      .prefix_caching = options.prefix_caching,
      .scheduling = options.scheduling,
      .preemption = options.preemption,
      .whole_prompts = options.kv_mode() == KvMode::layerwise,
  };
}

// The options that the engine goes by, and every rank's runner for them.
struct Runners {
  EngineOptions options;
  RunnerOptions runner;
  std::vector<std::string> notes;
};

Runners make_runners(EngineOptions asked, std::int64_t model_limit, ipc::GroupCaller& caller,
                     DeviceKind device) {
  Runners made;
  const auto make = [&] {
    check_sparse_attention(asked);
    check_host_attention(asked);
    made.options = settled(asked, model_limit);
    made.runner = runner_options(made.options, wanted_model_len(made.options, model_limit),
                                 asked.max_num_batched_tokens);
    caller.call<void>("make_runner", made.runner, products_to_read(asked, device), asked.profile);
  };
  make();
  if (asked.kv_offload != KvOffload::automatic) return made;
  // Which depends on what such a runner leaves of the devices.
  const auto memory = caller.call<RankMemory>("engine_memory");
  asked.kv_offload = choose_offload(made.options, model_limit, device, memory, made.notes);
  check_host_attention(asked);
  if (asked.kv_offload != KvOffload::off) make();
  return made;
}

}  // namespace

EngineSetup set_up_engine(const EngineOptions& asked, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::RequestServer& server, const EngineRank& own) {
  const std::int64_t model_limit = own.model().config.max_position_embeddings;
  Runners made = make_runners(asked, model_limit, caller, own.device());
  const EngineOptions& options = made.options;
  ModelLoading loading(me, caller, server);
  loading.await_all();
  EngineProducts products = choose_products(options, made.runner, own.device(), caller);

  const auto memory = caller.call<RankMemory>("engine_memory");
  MemoryPlan plan = plan_memory(options, model_limit, own.device(), memory);
  caller.call<void>("make_cache", plan.blocks, plan.host_blocks, plan.device_slots,
                    plan.all_stay());

  EngineSetup setup;
  setup.limits = scheduler_limits(options, made.runner, plan);
  EngineInfo& info = setup.info;
  info.kv_mode = options.kv_mode();
  info.max_model_len = plan.max_model_len;
  info.blocks = plan.blocks;
  info.block_size = options.block_size;
  info.host_blocks = plan.host_blocks;
  info.resident_blocks = plan.resident_blocks;
  for (const RankMemory& rank : memory) {
    const std::uint64_t block = rank.host_block > 0 ? rank.host_block : rank.block;
    info.kv_bytes_per_token += block / static_cast<std::uint64_t>(options.block_size);
  }
  info.ranks = loading.report();
  for (const RankLoad& rank : info.ranks) info.weight_bytes += rank.times.bytes_loaded;
  info.products_known = products.known;
  info.products_measured = products.measured;
  info.notes = std::move(made.notes);
  info.notes.insert(info.notes.end(), products.notes.begin(), products.notes.end());
  info.notes.insert(info.notes.end(), plan.notes.begin(), plan.notes.end());
  return setup;
}

}  // namespace nvllm::runtime
