#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "base/trace.h"
#include "kernels/attention/kv_view.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_rank.h"
#include "runtime/memory/memory_plan.h"
#include "runtime/model/model_loading.h"
#include "runtime/options.h"
#include "runtime/runner/gemm_tuning.h"
#include "runtime/runner/runner_cache.h"

namespace nvllm::runtime {
namespace {

// How many rows of prompt log-probabilities a step computes, in addition to one logit row per
// sequence. Each row takes one float per vocabulary entry.
constexpr std::int64_t kPromptLogitRows = 64;

// Resolves `auto` to full if no prompt can be long enough for sparse attention.
PrefillAttention prefill_attention(const EngineOptions& options, std::int64_t max_model_len) {
  const bool never = max_model_len < kAutomaticSparseTokens;
  const bool automatic = options.prefill_attention == PrefillAttention::automatic;
  return automatic && never ? PrefillAttention::full : options.prefill_attention;
}

// micro_batch_rows: in layer-wise mode, how many rows a layer processes at a time. stages: of the
// pipeline.
RunnerOptions runner_options(const EngineOptions& options, const model::ModelConfig& config,
                             std::int64_t max_model_len, std::int64_t micro_batch_rows,
                             int stages) {
  return {
      .max_model_len = max_model_len,
      .max_num_seqs = options.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .max_logit_rows =
          std::min(options.max_num_batched_tokens, options.max_num_seqs + kPromptLogitRows),
      .block_size = options.block_size,
      .graphs = options.graphs,
      .keeps_results = false,
      .steps_ahead = steps_in_flight(options, stages),
      .kv_mode = options.kv_mode(),
      .kv_cache_dtype = options.kv_cache_dtype,
      // In a pipeline all layers are in one group.
      .window_group = options.kv_mode() == KvMode::paged && stages == 1 ? config.window_group() : 0,
      .ring_slots = options.ring_slots,
      .host_attention = options.host_attention,
      .host_threads = options.host_threads,
      .kv_buffers = options.kv_buffers,
      .prefill_attention = prefill_attention(options, max_model_len),
      .decode_attention = options.decode_attention,
      .micro_batch_rows = options.kv_mode() == KvMode::layerwise ? micro_batch_rows : 0,
  };
}

// RunnerOptions::overlap_rows; 0: no step is overlapped. Overlap is disabled for caches in host
// memory, caches with several layer groups, and sparse attention: these combinations are untested.
std::int64_t overlap_rows(const EngineOptions& options, const RunnerOptions& runner,
                          const EngineRank& own) {
  const bool can = own.can_overlap() && runner.kv_mode == KvMode::paged &&
                   runner.window_group == 0 && runner.prefill_attention == PrefillAttention::full &&
                   runner.decode_attention == DecodeAttention::full;
  return can && runner.rows() >= options.overlap_rows ? options.overlap_rows : 0;
}

// The largest attention window of any layer, in tokens, if blocks before it can be freed from the
// cache on the device. 0: attention is not limited.
std::int64_t window_of_all_layers(const EngineOptions& options, const model::ModelConfig& config) {
  const std::vector<std::int64_t>& windows = config.windows;
  const bool all = !windows.empty() && std::ranges::find(windows, 0) == windows.end() &&
                   config.linear_attention.key_heads == 0;
  return all && options.kv_mode() == KvMode::paged ? std::ranges::max(windows) : 0;
}

SchedulerLimits scheduler_limits(const EngineOptions& options, const RunnerOptions& runner,
                                 const MemoryPlan& plan, const model::ModelConfig& config,
                                 int stages) {
  return {
      .max_model_len = plan.max_model_len,
      .length_option =
          options.kv_mode() == KvMode::contiguous ? "--max-seq-len" : "--max-model-len",
      .max_num_seqs = plan.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .max_logit_rows = runner.max_logit_rows,
      .blocks = plan.blocks,
      .block_size = options.block_size,
      .host_blocks = plan.host_blocks,
      .window = window_of_all_layers(options, config),
      .window_group = {.window = runner.window_group,
                       .blocks = plan.window_blocks,
                       .host_blocks = plan.host_window_blocks},
      .states = {.kept = config.linear_attention.key_heads > 0,
                 .snapshots = plan.state_snapshots,
                 .snapshot_tokens = options.state_snapshot_tokens,
                 .host = plan.host_states},
      .resident_blocks = plan.resident_blocks,
      .chunked_seqs = plan.chunked_seqs,
      .stages = stages,
      .prefix_caching = options.prefix_caching,
      .scheduling = options.scheduling,
      .preemption = options.preemption,
      .whole_prompts = options.kv_mode() == KvMode::layerwise,
  };
}

// Whether the memory of a CPU's cache is committed before the engine is ready. A size that the user
// requested is always committed, however long that takes (0.1 to 0.5 s per GiB on one core). The
// default size, up to 4 GiB of which most runs use little, is committed only if that takes no time;
// otherwise it is only claimed (device/host_memory.cc): no other run can reserve it, and it is at
// most a quarter of the free memory.
bool is_committed(const EngineOptions& options, DeviceKind device, const MemoryPlan& plan,
                  std::span<const RankMemory> ranks) {
  constexpr std::uint64_t kQuick = std::uint64_t{32} << 20;
  std::uint64_t bytes = 0;
  for (const RankMemory& rank : ranks) {
    bytes += rank.block * static_cast<std::uint64_t>(plan.blocks) +
             rank.window_block * static_cast<std::uint64_t>(plan.window_blocks);
  }
  return device == DeviceKind::cpu && (options.kv_cache_memory_bytes || bytes <= kQuick);
}

// Rank 0's GEMM configurations that earlier runs or this run measured.
struct GemmTuning {
  std::uint64_t known = 0, measured = 0;
  std::vector<std::string> notes = {};  // messages for the user, one line each
};

// The file that each rank reads when its runner is created; empty: none.
std::string tuning_file_to_read(const EngineOptions& options, DeviceKind device);

// With --tune full, measures the missing GEMM configurations on all ranks and stores them. All
// ranks must have created their runners and loaded their weights.
GemmTuning tune_engine(const EngineOptions& options, const RunnerOptions& runner, DeviceKind device,
                       ipc::GroupCaller& caller);

// The options after automatic choices, and the options of the runner that every rank created.
struct Runners {
  EngineOptions options;
  RunnerOptions runner;
  std::vector<std::string> notes;
};

// Sparse attention selects tokens, and a chunked cache computes attention in parts, without regard
// to windows or sinks.
void check_windows(const EngineOptions& options, const model::ModelConfig& config) {
  if (config.windows.empty() && !config.attention_sinks) return;
  const auto refuse = [&](const char* option, const char* fix) {
    if (config.windows.empty()) fail(option, ": not with attention sinks; pass ", fix);
    fail(option, ": not with layers that attend to a window, of ", std::ranges::max(config.windows),
         " tokens in this model; pass ", fix);
  };
  if (options.prefill_attention != PrefillAttention::full) {
    refuse("--prefill-attention", "--prefill-attention full");
  }
  if (options.decode_attention != DecodeAttention::full) {
    refuse("--decode-attention quest", "--decode-attention full");
  }
  if (options.kv_offload == KvOffload::chunked) {
    refuse("--kv-offload chunked", "--kv-offload layerwise, or off");
  }
}

// Sparse attention and chunked caches support one head shape only. A cache that is loaded layer by
// layer cannot return to an earlier layer.
void check_layers(const EngineOptions& options, const model::ModelConfig& config) {
  const auto refuse = [&](const char* option, const char* what, const char* fix) {
    fail(option, ": not with layers that ", what, ", as a ", config.architecture, " has; pass ",
         fix);
  };
  constexpr const char* kHeads = "differ in their heads";
  const bool shared = config.kv_shared_layers > 0;
  if (config.differs_in_heads() && options.prefill_attention != PrefillAttention::full) {
    refuse("--prefill-attention", kHeads, "--prefill-attention full");
  }
  if (config.differs_in_heads() && options.decode_attention != DecodeAttention::full) {
    refuse("--decode-attention quest", kHeads, "--decode-attention full");
  }
  if (config.differs_in_heads() && options.kv_offload == KvOffload::chunked) {
    refuse("--kv-offload chunked", kHeads,
           shared ? "--kv-offload off" : "--kv-offload layerwise, or off");
  }
  if (shared && options.kv_offload == KvOffload::layerwise) {
    refuse("--kv-offload layerwise", "read the keys and values of others", "--kv-offload off");
  }
}

// Whether check_windows() and check_layers() accept a chunked cache.
bool can_be_chunked(const model::ModelConfig& config) {
  return config.windows.empty() && !config.attention_sinks && !config.differs_in_heads();
}

// The GPU kernels of sparse attention do not support longer heads.
void check_sparse_heads(const EngineOptions& options, const model::ModelConfig& config,
                        DeviceKind device) {
  if (device == DeviceKind::cpu || config.head_dim <= kernels::kMaxCudaHeadDim) return;
  const auto refuse = [&](const char* option) {
    fail(option, ": not with heads of ", config.head_dim, " elements on GPUs; pass ", option,
         " full, or --device cpu");
  };
  if (options.prefill_attention != PrefillAttention::full) refuse("--prefill-attention");
  if (options.decode_attention != DecodeAttention::full) refuse("--decode-attention");
}

// Linear attention keeps one state per sequence, after its newest token. So no other sequence can
// share a prefix, and a preempted sequence is recomputed, if states are not copied. They are not in
// a pipeline, nor in layer-wise mode, where a prompt is a single pass through all layers that
// snapshots would split.
void adapt_to_states(const model::ModelConfig& config, int stages, EngineOptions& options,
                     std::vector<std::string>& notes) {
  const bool keeps_states = config.linear_attention.key_heads > 0;
  if (options.state_snapshots.value_or(0) > 0 && (!keeps_states || !options.prefix_caching)) {
    fail("--state-snapshots ", *options.state_snapshots, ": ",
         keeps_states ? "only prefix caching has a use for them, and it is off"
                      : "only models with linear attention have states",
         "; leave it out");
  }
  if (!keeps_states) return;
  const bool layerwise = options.kv_mode() == KvMode::layerwise;
  if (stages > 1) options.preemption = Preemption::recompute;
  if (!options.prefix_caching || (stages == 1 && !layerwise)) return;
  options.prefix_caching = false;
  notes.push_back(str("prefix caching is off: no snapshots of linear attention's states are taken ",
                      layerwise ? "with --kv-offload layerwise" : "in a pipeline"));
}

Runners make_runners(EngineOptions requested, const model::ModelConfig& config,
                     ipc::GroupCaller& caller, const EngineRank& own) {
  const DeviceKind device = own.device();
  const std::int64_t model_limit = config.max_model_len();
  Runners made;
  const auto make = [&] {
    check_stages(requested, own.stages());
    check_sparse_attention(requested);
    check_host_attention(requested);
    check_kv_cache_dtype(requested, config.head_dim);
    check_kv_cache_dtype(requested, config.full_head_dim());
    check_layers(requested, config);
    check_sparse_heads(requested, config, device);
    check_windows(requested, config);
    check_invariance(requested);
    NVLLM_CHECK(own.model().tp_invariant == (requested.invariance == Invariance::tp),
                "the model is divided among ranks in another way");
    made.options = resolve_options(requested, model_limit);
    made.runner = runner_options(made.options, config, wanted_model_len(made.options, model_limit),
                                 requested.max_num_batched_tokens, own.stages());
    // On the CPU only GEMMs by quantized weights and chunks have an order of their own otherwise.
    made.runner.invariant =
        is_invariant(requested.invariance) && (device == DeviceKind::cuda || own.quantized());
    made.runner.whole_sequences =
        is_invariant(requested.invariance) && made.options.kv_offload == KvOffload::chunked;
    made.runner.overlap_rows = overlap_rows(requested, made.runner, own);
    caller.call<void>("make_runner", made.runner, tuning_file_to_read(requested, device),
                      requested.profile);
  };
  make();
  if (requested.kv_offload != KvOffload::automatic) {
    adapt_to_states(config, own.stages(), made.options, made.notes);
    return made;
  }
  // The choice depends on how much device memory is left beside the runner of a paged cache.
  const auto memory = caller.call<RankMemory>("engine_memory");
  requested.kv_offload = choose_offload(made.options, model_limit, device, memory, made.notes,
                                        made.runner.window_group, can_be_chunked(config));
  check_host_attention(requested);
  if (requested.kv_offload != KvOffload::off) make();
  adapt_to_states(config, own.stages(), made.options, made.notes);
  return made;
}

}  // namespace

int steps_in_flight(const EngineOptions& options, int stages) {
  if (stages > 1) return stages;
  return options.async_scheduling ? 2 : 1;
}

EngineSetup set_up_engine(const EngineOptions& requested, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::RequestServer& server, const EngineRank& own) {
  const model::ModelConfig& config = own.model().config;
  const std::int64_t model_limit = config.max_model_len();
  Runners made = make_runners(requested, config, caller, own);
  const EngineOptions& options = made.options;
  ModelLoading loading(me, caller, server);
  loading.await_all();
  if (made.runner.overlap_rows > 0) caller.call<void>("open_overlap");
  GemmTuning tuning = tune_engine(options, made.runner, own.device(), caller);

  const auto memory = caller.call<RankMemory>("engine_memory");
  MemoryPlan plan =
      plan_memory(options, model_limit, own.device(), memory, made.runner.window_group);
  caller.call<void>("make_cache", CacheSize{.blocks = plan.blocks,
                                            .host_blocks = plan.host_blocks,
                                            .window_blocks = plan.window_blocks,
                                            .host_window_blocks = plan.host_window_blocks,
                                            .device_slots = plan.device_slots,
                                            .all_resident = plan.all_resident(),
                                            .state_snapshots = plan.state_snapshots,
                                            .host_states = plan.host_states});

  if (is_committed(options, own.device(), plan, memory)) caller.call<void>("commit_cache");

  EngineSetup setup;
  setup.limits = scheduler_limits(options, made.runner, plan, config, own.stages());
  EngineInfo& info = setup.info;
  info.kv_mode = options.kv_mode();
  info.max_model_len = plan.max_model_len;
  info.blocks = plan.blocks;
  info.block_size = options.block_size;
  info.host_blocks = plan.host_blocks;
  info.resident_blocks = plan.resident_blocks;
  info.window_blocks = plan.window_blocks;
  info.host_window_blocks = plan.host_window_blocks;
  const bool keeps_states = config.linear_attention.key_heads > 0;
  info.prefix_caching = options.prefix_caching && (!keeps_states || plan.state_snapshots > 0);
  info.state_snapshots = plan.state_snapshots;
  info.host_states = plan.host_states;
  for (const RankMemory& rank : memory) {
    const std::uint64_t block = rank.host_block > 0 ? rank.host_block : rank.block;
    info.kv_bytes_per_token +=
        (block + rank.window_block) / static_cast<std::uint64_t>(options.block_size);
  }
  info.ranks = loading.report();
  for (const RankLoad& rank : info.ranks) info.weight_bytes += rank.times.bytes_loaded;
  info.gemm_configs_known = tuning.known;
  info.gemm_configs_measured = tuning.measured;
  info.notes = std::move(made.notes);
  info.notes.insert(info.notes.end(), tuning.notes.begin(), tuning.notes.end());
  info.notes.insert(info.notes.end(), plan.notes.begin(), plan.notes.end());
  return setup;
}

namespace {

// Adds the ranks' measurements to the file; returns a description of where they are stored. Ranks
// have the same GPU and (almost) the same GEMMs, so one configuration is stored for each GEMM.
std::string keep(const std::string& path, const std::vector<GemmTuningReport>& reports) {
  if (path.empty()) return "kept nowhere: neither XDG_CACHE_HOME nor HOME is an absolute path";
  kernels::GemmConfigurations all;
  for (const GemmTuningReport& report : reports) {
    all.insert(report.measured.begin(), report.measured.end());
  }
  try {
    if (!all.empty()) GemmTuningCache(path).add(all);
  } catch (const Error& error) {
    return str("not kept: ", error.what());
  }
  return "kept in " + path;
}

std::string tuning_file_to_read(const EngineOptions& options, DeviceKind device) {
  // The CPU has no configurations to choose from.
  const bool any = options.tuning != Tuning::off && device == DeviceKind::cuda;
  return any ? options.gemm_tuning_file : "";
}

GemmTuning tune_engine(const EngineOptions& options, const RunnerOptions& runner, DeviceKind device,
                       ipc::GroupCaller& caller) {
  GemmTuning tuning;
  if (options.tuning == Tuning::off || device == DeviceKind::cpu) return tuning;
  const std::int64_t start = now_ns();
  if (options.tuning == Tuning::full) {
    const std::int64_t rows = std::max(runner.max_num_batched_tokens, runner.max_num_seqs);
    const std::int64_t at_once =
        runner.micro_batch_rows == 0 ? rows : std::min(rows, runner.micro_batch_rows);
    for (const TunedSize& size : tuned_sizes(runner.max_num_seqs, at_once)) {
      caller.call<void>("tune_gemms", size);
    }
  }
  const double seconds = seconds_since(start);
  const auto reports = caller.call<GemmTuningReport>("gemm_tuning_report");
  const GemmTuningReport& first = reports.front();
  if (!first.problem.empty()) tuning.notes.push_back(first.problem);
  tuning.known = first.known;
  tuning.measured = first.measured.size();
  if (options.tuning == Tuning::full) {
    tuning.notes.push_back(str("GEMM tuning: ", tuning.known, " measurements of earlier runs, ",
                               tuning.measured, " new ones in ", std::lround(seconds * 10) / 10.0,
                               " s, ", keep(options.gemm_tuning_file, reports)));
  }
  return tuning;
}

}  // namespace

}  // namespace nvllm::runtime
