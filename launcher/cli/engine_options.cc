// The options of the engine. Names and meanings are those of vLLM, where vLLM has them.
#include <bit>
#include <limits>

#include "ipc/group.h"
#include "launcher/cli/option_table.h"
#include "runtime/options.h"

namespace nvllm::launcher {
namespace {

using runtime::KvCacheDtype;
using runtime::KvOffload;
using runtime::Preemption;
using runtime::Scheduling;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;  // of a sequence or a step
constexpr std::int64_t kMaxSequences = 65536;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxBlockSize = 1024;
constexpr double kMaxGib = 1 << 20;
constexpr std::int64_t kMaxBuffers = 1024;
constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kTransferMultiple = 16;

std::int64_t gib(const OptionValue& value, double min) {
  constexpr double kGib = std::int64_t{1} << 30;
  return static_cast<std::int64_t>(value.real(min, kMaxGib) * kGib);
}

void store_block_size(Options& options, const OptionValue& value) {
  options.engine.block_size = value.whole(1, kMaxBlockSize);
  if (!std::has_single_bit(static_cast<std::uint64_t>(options.engine.block_size))) {
    refuse(value.name(), ' ', value.text(), ": not a power of two; pass 16, 32, 64 or the like");
  }
}

// Options that only apply to a KV cache in host memory.
struct HostCacheOption {
  const char* name;
  bool chunked, layerwise;  // the modes of --kv-offload that use it
};
constexpr HostCacheOption kHostCacheOptions[] = {
    {"--kv-offloading-size", true, true}, {"--transfer-block", true, true},
    {"--ring-slots", true, false},        {"--kv-resident-blocks", true, false},
    {"--kv-host-threads", true, false},   {"--kv-buffers", false, true}};

// Also records that the option was given, for refuse_unused_host_options().
StoreOption noted(StoreOption store) {
  return [store](Options& options, const OptionValue& value) {
    const std::string name(value.name());
    options.host_cache.erase(name);
    if (value.text() != "auto") options.host_cache.emplace(name, value.text());
    store(options, value);
  };
}

void refuse_unused_host_options(const Options& options) {
  const runtime::EngineOptions& engine = options.engine;
  for (const HostCacheOption& option : kHostCacheOptions) {
    const auto given = options.host_cache.find(option.name);
    if (given == options.host_cache.end() || engine.kv_offload == KvOffload::automatic) continue;
    const bool chunked = engine.kv_offload == KvOffload::chunked;
    const bool layerwise = engine.kv_offload == KvOffload::layerwise;
    if ((chunked && option.chunked) || (layerwise && option.layerwise)) continue;
    const char* const users = !option.layerwise ? "chunked"
                              : !option.chunked ? "layerwise"
                                                : "chunked or layerwise";
    const char* const mode = chunked ? "chunked" : layerwise ? "layerwise" : "off";
    refuse(option.name, ' ', given->second, ": only --kv-offload ", users,
           " has a use for it, and it is ", mode, "; pass that, or leave ", option.name, " out");
  }
  if (const auto given = options.host_cache.find("--kv-host-threads");
      given != options.host_cache.end() && engine.host_attention == 0.0) {
    refuse(given->first, ' ', given->second,
           ": only --kv-host-attention has a use for them, and it is off; pass --kv-host-attention "
           "auto, or leave ",
           given->first, " out");
  }
}

void store_transfer_block(Options& options, const OptionValue& value) {
  if (value.text() == "auto") return options.engine.transfer_block.reset();
  const std::int64_t tokens = value.amount(kTransferMultiple, kMaxTokens);
  if (tokens % kTransferMultiple != 0) {
    refuse(value.name(), ' ', value.text(), ": not a multiple of ", kTransferMultiple, "; pass ",
           tokens / kTransferMultiple * kTransferMultiple, " or ",
           (tokens / kTransferMultiple + 1) * kTransferMultiple);
  }
  options.engine.transfer_block = tokens;
}

// Number of device slots through which blocks or layers are loaded and read.
std::int64_t loading_places(const OptionValue& value, const char* what) {
  if (value.text() == "1") {
    refuse(value.name(), " 1: a ", what,
           " cannot be loaded while it is read, and nothing would be loaded ahead; pass 2 or more");
  }
  return value.whole(2, kMaxBuffers);
}

void store_ring_slots(Options& options, const OptionValue& value) {
  options.engine.ring_slots = loading_places(value, "slot");
}

void store_kv_buffers(Options& options, const OptionValue& value) {
  options.engine.kv_buffers = loading_places(value, "buffer");
}

// Rejects a text that is not a number: `what` it should be, and what to pass.
void require_digits(const OptionValue& value, const char* what) {
  if (value.text().find_first_of("0123456789") != std::string_view::npos) return;
  refuse(value.name(), " '", value.text(), "': not a ", what);
}

void store_resident_blocks(Options& options, const OptionValue& value) {
  if (value.text() == "auto") return options.engine.resident_blocks.reset();
  require_digits(value, "number of blocks; pass auto, or 0 or more");
  options.engine.resident_blocks = value.whole(0, kMaxTokens);
}

void store_state_snapshots(Options& options, const OptionValue& value) {
  if (value.text() == "auto") return options.engine.state_snapshots.reset();
  require_digits(value, "number of snapshots; pass auto, or 0 or more");
  options.engine.state_snapshots = value.whole(0, kMaxTokens);
}

void store_host_attention(Options& options, const OptionValue& value) {
  if (value.text() == "auto") return options.engine.host_attention.reset();
  if (value.text() != "off") require_digits(value, "share; pass off, auto, or 0 to 1");
  options.engine.host_attention = value.text() == "off" ? 0.0 : value.real(0, 1);
}

void store_profile(Options& options, const OptionValue& value) {
  options.profile = value.path("a file for the trace, such as trace.json");
  options.engine.profile = true;
}

}  // namespace

OptionRows engine_rows() {
  using runtime::DecodeAttention;
  using runtime::EngineOptions;
  using runtime::PrefillAttention;
  using runtime::Tuning;
  const Into into(&Options::engine);
  const OptionRows rows = {
      {"--max-model-len", "N",
       "the longest sequence, prompt and answer together; 32k: thousands, 32K:\n"
       "of 1024",
       "the model's limit, or what fits",
       into.amount(&EngineOptions::max_model_len, 1, kMaxTokens)},
      {"--max-seq-len", "N",
       "keeps the KV cache of one sequence at a time, of at most N tokens, in\n"
       "one piece of memory instead of blocks; 0: in blocks (paged)",
       "0", into.amount(&EngineOptions::max_seq_len, 0, kMaxTokens)},
      {"--max-num-seqs", "N", "how many sequences run at a time", "256",
       into.whole(&EngineOptions::max_num_seqs, 1, kMaxSequences)},
      {"--max-num-batched-tokens", "N",
       "how many tokens a step computes; longer prompts take several steps\n"
       "(chunked prefill)",
       "8192", into.amount(&EngineOptions::max_num_batched_tokens, 1, kMaxTokens)},
      {"--block-size", "N", "tokens of a block of the KV cache; a power of two", "16",
       store_block_size},
      {"--gpu-memory-utilization", "FRACTION",
       "how much of a GPU's memory this program takes in all", "0.9",
       into.real(&EngineOptions::gpu_memory_utilization, 0.01, 1)},
      {"--kv-cache-memory-bytes", "BYTES",
       "memory of each rank's KV cache: 4G, 512M (of 1024), or bytes",
       "what --gpu-memory-utilization leaves; on the CPU 4G of all ranks or less",
       into.amount(&EngineOptions::kv_cache_memory_bytes, 1, kMaxBytes)},
      {"--kv-cache-dtype", "auto|fp8|fp8_e4m3",
       "type of keys and values in the KV cache; auto: the model's; fp8: 8 bits\n"
       "(e4m3), by the scales that the checkpoint has, or 1",
       "auto",
       into.one_of(&EngineOptions::kv_cache_dtype, "type of the KV cache",
                   {{"auto", KvCacheDtype::automatic},
                    {"fp8", KvCacheDtype::fp8_e4m3},
                    {"fp8_e4m3", KvCacheDtype::fp8_e4m3}})},
      {"--enable-prefix-caching", nullptr,
       "whether prompts with the same beginning share its KV cache, in whole\n"
       "blocks (--block-size; with --kv-offload those of --transfer-block)",
       "on", into.on(&EngineOptions::prefix_caching), "--no-enable-prefix-caching"},
      {"--state-snapshots", "auto|N",
       "linear attention: snapshots of a sequence's states on the device, behind\n"
       "which prompts with the same beginning may start; auto: as many as a\n"
       "quarter of the KV cache's memory holds; 0: no prefix caching",
       "auto", store_state_snapshots},
      {"--scheduling", "prefill-first|mixed",
       "prefill-first: a step is either prefill or decode, prefill first; mixed:\n"
       "a step does both",
       "mixed",
       into.one_of(&EngineOptions::scheduling, "policy",
                   {{"prefill-first", Scheduling::prefill_first}, {"mixed", Scheduling::mixed}})},
      {"--preemption", "swap|recompute",
       "what happens to the newest sequence when the KV cache is full: it waits\n"
       "in host memory, or is computed again later",
       "swap",
       into.one_of(&EngineOptions::preemption, "way to preempt",
                   {{"swap", Preemption::swap}, {"recompute", Preemption::recompute}})},
      {"--swap-space", "GIB", "host memory of each rank for preempted sequences",
       "4, or what there is",
       [](Options& o, const OptionValue& v) { o.engine.swap_space_bytes = gib(v, 0); }},
      {"--kv-offload", "off|chunked|layerwise|auto",
       "keeps the KV cache in host memory; chunked: blocks that do not fit on\n"
       "the device are streamed to it through a ring whenever they are read;\n"
       "layerwise: prefill goes layer by layer, and whole layers are streamed;\n"
       "auto: off if --max-num-seqs sequences of --max-model-len fit on the\n"
       "device, layerwise for one at a time of which less than half fits, else\n"
       "chunked",
       "off",
       into.one_of(&EngineOptions::kv_offload, "place of the KV cache",
                   {{"off", KvOffload::off},
                    {"chunked", KvOffload::chunked},
                    {"layerwise", KvOffload::layerwise},
                    {"auto", KvOffload::automatic}})},
      {"--kv-offloading-size", "GIB", "host memory of all ranks for the KV cache (--kv-offload)",
       "half of what is available", noted([](Options& o, const OptionValue& v) {
         o.engine.kv_offloading_bytes = gib(v, 0.001);
       })},
      {"--ring-slots", "N", "chunked: slots of the ring on the device, each a part of a block",
       "16", noted(store_ring_slots)},
      {"--transfer-block", "auto|N",
       "tokens of a block in host memory; a multiple of 16; auto: an eighth of\n"
       "--max-model-len, as a power of two from 256 to 4096; shorter beginnings\n"
       "of prompts are not shared",
       "auto", noted(store_transfer_block)},
      {"--kv-resident-blocks", "auto|N",
       "chunked: blocks that stay on the device while their sequences run, and\n"
       "are not streamed; auto: as many as fit; 0: all blocks come through the\n"
       "ring",
       "auto", noted(store_resident_blocks)},
      {"--kv-host-attention", "off|auto|SHARE",
       "chunked: the share of decode attention that the host's cores compute in\n"
       "host memory while the rest is streamed to the device; auto: the share\n"
       "that takes the least time, measured when the engine starts; 0.5: half",
       "off", store_host_attention},
      {"--kv-host-threads", "N", "threads of each rank for --kv-host-attention",
       "the cores near its GPU, shared among ranks",
       noted(into.whole(&EngineOptions::host_threads, 1, kMaxThreads))},
      {"--kv-buffers", "N",
       "layerwise: layers on the device at a time; the next ones load while one\n"
       "is read",
       "4", noted(store_kv_buffers)},
      {"--prefill-attention", "full|minference|xattention|auto",
       "attention of prompts of 1024 tokens or more: full, or block-sparse;\n"
       "auto: xattention from 65536 tokens on, full below",
       "full",
       into.one_of(&EngineOptions::prefill_attention, "kind of prefill attention",
                   {{"full", PrefillAttention::full},
                    {"minference", PrefillAttention::minference},
                    {"xattention", PrefillAttention::xattention},
                    {"auto", PrefillAttention::automatic}})},
      {"--decode-attention", "full|quest",
       "attention of decode steps: full, or quest: only the 128 pages of 16\n"
       "tokens with the highest estimated scores",
       "full",
       into.one_of(&EngineOptions::decode_attention, "kind of decode attention",
                   {{"full", DecodeAttention::full}, {"quest", DecodeAttention::quest}})},
      {"--invariant", "off|batch|tp",
       "batch: a request's tokens and log-probabilities are the same bits\n"
       "whatever else runs, however its prompt is cut, cached or not; on the CPU\n"
       "they are so anyway, but for --kv-offload chunked and quantized weights.\n"
       "tp: with any number of ranks, too",
       "off; batch if VLLM_BATCH_INVARIANT=1",
       into.one_of(&EngineOptions::invariance, "kind of invariance",
                   {{"off", runtime::Invariance::off},
                    {"batch", runtime::Invariance::batch},
                    {"tp", runtime::Invariance::tp}})},
      {"--overlap-rows", "N",
       "several GPUs (--tp): prefill steps of at least N tokens are computed in\n"
       "two halves, and all-reduces of one run beside the GEMMs of the other; 0:\n"
       "never",
       "4096", into.amount(&EngineOptions::overlap_rows, 0, kMaxTokens)},
      {"--enforce-eager", nullptr, "runs without CUDA graphs", "off",
       [](Options& o, const OptionValue& v) { o.engine.graphs = !v.on(); }, "--no-enforce-eager"},
      {"--async-scheduling", nullptr, "whether the next step is scheduled while one runs", "on",
       into.on(&EngineOptions::async_scheduling), "--no-async-scheduling"},
      {"--tune", "off|cached|full",
       "which GEMM kernels GPUs use; off: those that a heuristic picks by shape;\n"
       "cached: those that an earlier run autotuned on such a GPU, where there\n"
       "are any; full: also autotunes those that are missing, which takes\n"
       "seconds, for this run and later ones",
       "cached",
       into.one_of(&EngineOptions::tuning, "way to tune",
                   {{"off", Tuning::off}, {"cached", Tuning::cached}, {"full", Tuning::full}})},
      {"--seed", "N",
       "seed for requests that have none of their own: the same run gives the\n"
       "same tokens",
       "0", into.whole(&EngineOptions::seed, 0, std::numeric_limits<std::int64_t>::max())},
      {"--pp", "N",
       "how many pipeline stages the layers are divided into, each of --tp ranks\n"
       "(by default all GPUs, divided by this); 8 ranks in all at most",
       "1", Into(&Options::group).whole(&GroupOptions::stages, 1, ipc::kMaxRanks),
       "--pipeline-parallel-size"},
      memory_report_row(),
      {"--profile", "FILE", "writes a timeline of all processes, for Perfetto or chrome://tracing",
       nullptr, store_profile},
  };
  return in_group("Engine", rows);
}

void check_engine(const Options& options) {
  const runtime::EngineOptions& engine = options.engine;
  if (engine.max_seq_len > 0 && engine.max_model_len.value_or(0) > engine.max_seq_len) {
    refuse("--max-model-len ", *engine.max_model_len, ": --max-seq-len ", engine.max_seq_len,
           " holds no sequence as long; pass a larger --max-seq-len, or a smaller --max-model-len");
  }
  if (engine.max_seq_len > 0 && engine.kv_offload != KvOffload::off) {
    refuse("--max-seq-len ", engine.max_seq_len,
           ": keeps one sequence on the device, and --kv-offload keeps them in host memory; pass "
           "one of the two");
  }
  refuse_unused_host_options(options);
  if (const std::string why = runtime::sparse_refusal(engine); !why.empty()) refuse(why);
  if (const std::string why = runtime::host_attention_refusal(engine); !why.empty()) refuse(why);
  if (const std::string why = runtime::invariance_refusal(engine); !why.empty()) refuse(why);
  if (engine.max_num_batched_tokens < engine.max_num_seqs) {
    refuse("--max-num-batched-tokens ", engine.max_num_batched_tokens,
           ": less than --max-num-seqs ", engine.max_num_seqs,
           ", and every running sequence takes one token of a step; pass ", engine.max_num_seqs,
           " or more, or a smaller --max-num-seqs");
  }
}

}  // namespace nvllm::launcher
