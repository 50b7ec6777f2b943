#include "runtime/engine/engine_rank.h"

#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "device/host_memory.h"
#include "model/loading/kv_scales.h"
#include "runtime/memory/workspace.h"
#include "runtime/runner/gemm_tuning.h"

namespace nvllm::runtime {

void EngineRank::bind(ipc::Registry& methods) {
  methods.bind<&EngineRank::make_runner>("make_runner", this);
  methods.bind<&EngineRank::open_overlap>("open_overlap", this);
  methods.bind<&EngineRank::tune_gemms>("tune_gemms", this);
  methods.bind<&EngineRank::gemm_tuning_report>("gemm_tuning_report", this);
  methods.bind<&EngineRank::memory>("engine_memory", this);
  methods.bind<&EngineRank::make_cache>("make_cache", this);
  methods.bind<&EngineRank::commit_cache>("commit_cache", this);
  methods.bind<&EngineRank::step>("step", this);
  methods.bind<&EngineRank::synchronize>("synchronize", this);
  methods.bind<&EngineRank::kv_traffic>("kv_traffic", this);
  methods.bind<&EngineRank::take_trace>("take_trace", this);
}

// In a pipeline, the only rank of a stage also waits for other ranks, which its communicator names.
Peers EngineRank::peers() {
  const bool alone = communicator_.size() == 1 && link_ == nullptr;
  return {.communicator = alone ? nullptr : &communicator_, .link = link_};
}

void EngineRank::make_runner(const RunnerOptions& options, const std::string& gemm_tuning_file,
                             bool profile) {
  if (profile && !trace_) trace_.emplace();
  // With --invariant tp the ranks' partial sums are gathered and added in a fixed order, not by
  // NCCL.
  if (options.invariant && !model_.decoder().shard().tp_invariant &&
      !communicator_.order_is_fixed()) {
    fail("--invariant batch: ", communicator_.name() == "nccl" ? "NCCL" : communicator_.name(),
         " adds the parts of ", communicator_.size(),
         " ranks in an order that depends on how many rows there are; ",
         me_.group().boxes() == 1 ? "pass --collectives peer"
                                  : "divide each stage equally among two boxes, two ranks or more "
                                    "on each, with --collectives auto",
         ", or pass --invariant off");
  }
  options_ = options;
  options_.keeps_results = me_.rank() == 0;
  kv_scales_.clear();
  if (options.kv_cache_dtype == KvCacheDtype::fp8_e4m3 && model_.model().checkpoint) {
    kv_scales_ = model::read_kv_scales(
        *model_.model().checkpoint, model_.model().config, [&](std::int64_t layer) {
          const layers::Range own = model_.decoder().own_layers();
          const bool is_own = layer >= own.begin && layer < own.end;
          return is_own ? model_.decoder().heads(layer).kv : layers::Range{};
        });
  }
  model_.await_bound();
  runner_.reset();
  require_states(model_.decoder(), options_.max_num_seqs, backend_.memory().available);
  require_workspace(options_, backend_.kind(), backend_.memory().available,
                    [&](const RunnerOptions& of) {
                      return workspace_bytes(model_.decoder(), of, backend_.kind());
                    });
  runner_.emplace(model_.decoder(), backend_, stream_, peers(), options_, trace(),
                  [this] { me_.note_progress(); });
  if (gemm_tuning_file.empty()) return;
  GemmTuningCache::Contents tuning = GemmTuningCache(gemm_tuning_file).read();
  tuning_problem_ = std::move(tuning.problem);
  runner_->adopt(std::move(tuning.configurations));
}

void EngineRank::open_overlap() {
  run_collective("open_overlap", [&] { runner_->open_overlap(); });
}

void EngineRank::tune_gemms(const TunedSize& size) {
  run_collective("tune_gemms", [&] { runner_->tune_gemms(size); });
}

GemmTuningReport EngineRank::gemm_tuning_report() {
  GemmTuningReport report = runner_->gemm_tuning();
  report.problem = tuning_problem_;
  return report;
}

RankMemory EngineRank::memory() {
  const DeviceMemory device = backend_.memory();
  const CacheBytes cache = runner_->cache_bytes();
  return {
      .total = device.total,
      .available = device.available,
      .taken = backend_.ledger().total(MemoryKind::device),
      .graphs = graph_bytes(model_.decoder(), options_, backend_.kind()),
      .block = cache.block,
      .fixed = cache.fixed,
      .host_block = cache.host_block,
      .device_slot = cache.device_slot,
      .host_available = host_memory().available,
      .window_block = cache.window_block,
      .state = model::DecoderMemory::state_bytes(model_.decoder(), 1),
  };
}

template <typename Work>
void EngineRank::run_collective(const char* what, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    const std::string words = str("rank ", me_.rank(), " in ", what, ": ", error.what());
    me_.set_error_text(words);
    me_.group().abort(words);
    throw;
  }
}

void EngineRank::make_cache(const CacheSize& size) {
  const Trace::Span span(trace(), "host", "make cache");
  // Ranks do not wait for each other here, so a failed allocation is returned as this call's error.
  runner_->make_cache(size, kv_scales_);
}

void EngineRank::commit_cache() {
  const Trace::Span span(trace(), "host", "commit cache");
  runner_->commit_cache();
}

void EngineRank::step(const StepMessage& message) {
  if (trace_ && last_step_ns_ != 0 && me_.rank() > 0) {
    trace_->add_span("rings", "await call", last_step_ns_, now_ns(), message.number);
  }
  run_collective("step", [&] { runner_->step(message); });
  last_step_ns_ = now_ns();
}

void EngineRank::synchronize() {
  communicator_.wait(stream_);
  last_step_ns_ = 0;
}

kvcache::KvTraffic EngineRank::kv_traffic() {
  return runner_->kv_traffic();
}

ProcessTrace EngineRank::take_trace() {
  ProcessTrace trace{.name = str("rank ", me_.rank()), .events = {}, .dropped = 0};
  if (trace_) {
    trace.events = trace_->drain();
    trace.dropped = trace_->dropped();
  }
  return trace;
}

}  // namespace nvllm::runtime
