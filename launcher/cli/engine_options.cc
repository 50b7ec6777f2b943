// The options of the engine. Names and meanings are those of vLLM, where it has them.
#include <bit>

#include "launcher/cli/option_table.h"
#include "runtime/options.h"

namespace nvllm::launcher {
namespace {

using runtime::KvOffload;
using runtime::Preemption;
using runtime::Scheduling;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;  // of a sequence, of a step
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

void store_scheduling(Options& options, const OptionValue& value) {
  options.engine.scheduling = value.one_of<Scheduling>(
      "policy", {{"prefill-first", Scheduling::prefill_first}, {"mixed", Scheduling::mixed}});
}

void store_preemption(Options& options, const OptionValue& value) {
  options.engine.preemption = value.one_of<Preemption>(
      "way to preempt", {{"swap", Preemption::swap}, {"recompute", Preemption::recompute}});
}

void store_kv_offload(Options& options, const OptionValue& value) {
  options.engine.kv_offload =
      value.one_of<KvOffload>("place of the KV cache", {{"off", KvOffload::off},
                                                        {"chunked", KvOffload::chunked},
                                                        {"layerwise", KvOffload::layerwise},
                                                        {"auto", KvOffload::automatic}});
}

void store_prefill_attention(Options& options, const OptionValue& value) {
  using runtime::PrefillAttention;
  options.engine.prefill_attention = value.one_of<PrefillAttention>(
      "kind of prefill attention", {{"full", PrefillAttention::full},
                                    {"minference", PrefillAttention::minference},
                                    {"xattention", PrefillAttention::xattention},
                                    {"auto", PrefillAttention::automatic}});
}

void store_decode_attention(Options& options, const OptionValue& value) {
  using runtime::DecodeAttention;
  options.engine.decode_attention = value.one_of<DecodeAttention>(
      "kind of decode attention",
      {{"full", DecodeAttention::full}, {"quest", DecodeAttention::quest}});
}

// Options that only a KV cache in host memory uses.
struct HostCacheOption {
  const char* name;
  bool chunked, layerwise;  // which --kv-offload uses it
};
constexpr HostCacheOption kHostCacheOptions[] = {
    {"--kv-offloading-size", true, true}, {"--transfer-block", true, true},
    {"--ring-slots", true, false},        {"--kv-resident-blocks", true, false},
    {"--kv-host-threads", true, false},   {"--kv-buffers", false, true}};

void note_host_option(Options& options, const char* name, const OptionValue& value) {
  options.host_cache.erase(name);
  if (value.text() != "auto") options.host_cache.emplace(name, value.text());
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

void store_kv_offloading_size(Options& options, const OptionValue& value) {
  note_host_option(options, "--kv-offloading-size", value);
  options.engine.kv_offloading_bytes = gib(value, 0.001);
}

void store_transfer_block(Options& options, const OptionValue& value) {
  note_host_option(options, "--transfer-block", value);
  if (value.text() == "auto") return options.engine.transfer_block.reset();
  const std::int64_t tokens = value.amount(kTransferMultiple, kMaxTokens);
  if (tokens % kTransferMultiple != 0) {
    refuse(value.name(), ' ', value.text(), ": not a multiple of ", kTransferMultiple, "; pass ",
           tokens / kTransferMultiple * kTransferMultiple, " or ",
           (tokens / kTransferMultiple + 1) * kTransferMultiple);
  }
  options.engine.transfer_block = tokens;
}

void store_ring_slots(Options& options, const OptionValue& value) {
  note_host_option(options, "--ring-slots", value);
  if (value.text() == "1") {
    refuse(
        value.name(),
        " 1: a slot cannot be loaded while it is read, and nothing would be loaded ahead; pass 2 "
        "or more");
  }
  options.engine.ring_slots = value.whole(2, kMaxBuffers);
}

void store_resident_blocks(Options& options, const OptionValue& value) {
  note_host_option(options, "--kv-resident-blocks", value);
  std::optional<std::int64_t>& blocks = options.engine.resident_blocks;
  if (value.text() == "auto") {
    blocks.reset();
  } else {
    if (value.text().find_first_of("0123456789") == std::string_view::npos) {
      refuse(value.name(), " '", value.text(),
             "': not a number of blocks; pass auto, or 0 or more");
    }
    blocks = value.whole(0, kMaxTokens);
  }
}

void store_host_attention(Options& options, const OptionValue& value) {
  std::optional<double>& share = options.engine.host_attention;
  if (value.text() == "off") {
    share = 0.0;
  } else if (value.text() == "auto") {
    share.reset();
  } else {
    if (value.text().find_first_of("0123456789") == std::string_view::npos) {
      refuse(value.name(), " '", value.text(), "': not a share; pass off, auto, or 0 to 1");
    }
    share = value.real(0, 1);
  }
}

void store_host_threads(Options& options, const OptionValue& value) {
  note_host_option(options, "--kv-host-threads", value);
  options.engine.host_threads = value.whole(1, kMaxThreads);
}

void store_kv_buffers(Options& options, const OptionValue& value) {
  note_host_option(options, "--kv-buffers", value);
  if (value.text() == "1") {
    refuse(value.name(),
           " 1: a buffer cannot be loaded while it is read, and nothing would be loaded ahead; "
           "pass 2 or more");
  }
  options.engine.kv_buffers = value.whole(2, kMaxBuffers);
}

void store_tuning(Options& options, const OptionValue& value) {
  using runtime::Tuning;
  options.engine.tuning = value.one_of<Tuning>(
      "way to tune", {{"off", Tuning::off}, {"cached", Tuning::cached}, {"full", Tuning::full}});
}

void store_profile(Options& options, const OptionValue& value) {
  options.profile = value.path("a file for the trace, such as trace.json");
  options.engine.profile = true;
}

}  // namespace

OptionRows engine_rows() {
  return in_group(
      "Engine",
      {
          {"--max-model-len", nullptr, "N",
           "the longest sequence, prompt and answer together; 32k: thousands, 32K:\n"
           "of 1024",
           "the model's limit, or what fits",
           [](Options& o, const OptionValue& v) {
             o.engine.max_model_len = v.amount(1, kMaxTokens);
           }},
          {"--max-seq-len", nullptr, "N",
           "keeps the KV cache of one sequence at a time, of at most N tokens, in\n"
           "one piece of memory instead of blocks; 0: in blocks (paged)",
           "0",
           [](Options& o, const OptionValue& v) {
             o.engine.max_seq_len = v.amount(0, kMaxTokens);
           }},
          {"--max-num-seqs", nullptr, "N", "how many sequences run at a time", "256",
           [](Options& o, const OptionValue& v) {
             o.engine.max_num_seqs = v.whole(1, kMaxSequences);
           }},
          {"--max-num-batched-tokens", nullptr, "N",
           "how many tokens a step computes; longer prompts take several steps\n"
           "(chunked prefill)",
           "8192",
           [](Options& o, const OptionValue& v) {
             o.engine.max_num_batched_tokens = v.amount(1, kMaxTokens);
           }},
          {"--block-size", nullptr, "N", "tokens of a block of the KV cache; a power of two", "16",
           store_block_size},
          {"--gpu-memory-utilization", nullptr, "FRACTION",
           "how much of a GPU's memory this program takes in all", "0.9",
           [](Options& o, const OptionValue& v) {
             o.engine.gpu_memory_utilization = v.real(0.01, 1);
           }},
          {"--kv-cache-memory-bytes", nullptr, "BYTES",
           "memory of each rank's KV cache: 4G, 512M (of 1024), or bytes", "what is left",
           [](Options& o, const OptionValue& v) {
             o.engine.kv_cache_memory_bytes = v.amount(1, kMaxBytes);
           }},
          {"--enable-prefix-caching", "--no-enable-prefix-caching", nullptr,
           "whether prompts with the same beginning share its KV cache", "on",
           [](Options& o, const OptionValue& v) { o.engine.prefix_caching = v.on(); }},
          {"--scheduling", nullptr, "prefill-first|mixed",
           "prefill-first: a step is either prefill or decode, prefill first; mixed:\n"
           "a step does both",
           "mixed", store_scheduling},
          {"--preemption", nullptr, "swap|recompute",
           "what happens to the newest sequence when the KV cache is full: it waits\n"
           "in host memory, or is computed again later",
           "swap", store_preemption},
          {"--swap-space", nullptr, "GIB", "host memory of each rank for that",
           "4, or what there is",
           [](Options& o, const OptionValue& v) { o.engine.swap_space_bytes = gib(v, 0); }},
          {"--kv-offload", nullptr, "off|chunked|layerwise|auto",
           "keeps the KV cache in host memory; chunked: blocks that do not fit on\n"
           "the device are streamed to it through a ring whenever they are read;\n"
           "layerwise: prefill goes layer by layer, and whole layers are streamed;\n"
           "auto: off if --max-num-seqs sequences of --max-model-len fit on the\n"
           "device, layerwise for one at a time of which less than half fits, else\n"
           "chunked",
           "off", store_kv_offload},
          {"--kv-offloading-size", nullptr, "GIB", "host memory of all ranks for that",
           "half of what is available", store_kv_offloading_size},
          {"--ring-slots", nullptr, "N",
           "chunked: slots of the ring on the device, each a part of a block", "16",
           store_ring_slots},
          {"--transfer-block", nullptr, "auto|N",
           "tokens of a block in host memory; a multiple of 16; auto: an eighth of\n"
           "--max-model-len, as a power of two from 256 to 4096",
           "auto", store_transfer_block},
          {"--kv-resident-blocks", nullptr, "auto|N",
           "chunked: blocks that stay on the device while their sequences run, and\n"
           "are not streamed; auto: as many as fit; 0: all blocks come through the\n"
           "ring",
           "auto", store_resident_blocks},
          {"--kv-host-attention", nullptr, "off|auto|SHARE",
           "chunked: the share of decode attention that the host's cores compute in\n"
           "host memory while the rest is streamed to the device; auto: the share\n"
           "that takes the least time, measured when the engine starts; 0.5: half",
           "off", store_host_attention},
          {"--kv-host-threads", nullptr, "N", "threads of each rank for that",
           "the cores near its GPU, shared among ranks", store_host_threads},
          {"--kv-buffers", nullptr, "N",
           "layerwise: layers on the device at a time; the next ones load while one\n"
           "is read",
           "4", store_kv_buffers},
          {"--prefill-attention", nullptr, "full|minference|xattention|auto",
           "attention of prompts of 1024 tokens or more: full, or block-sparse;\n"
           "auto: xattention from 65536 tokens on, full below",
           "full", store_prefill_attention},
          {"--decode-attention", nullptr, "full|quest",
           "attention of decode steps: full, or quest: only the 128 pages of 16\n"
           "tokens with the highest estimated scores",
           "full", store_decode_attention},
          {"--enforce-eager", "--no-enforce-eager", nullptr, "runs without CUDA graphs", "off",
           [](Options& o, const OptionValue& v) { o.engine.graphs = !v.on(); }},
          {"--async-scheduling", "--no-async-scheduling", nullptr,
           "whether the next step is scheduled while one runs", "on",
           [](Options& o, const OptionValue& v) { o.engine.async_scheduling = v.on(); }},
          {"--tune", nullptr, "off|cached|full",
           "which GEMM kernels GPUs use; off: those that a heuristic picks by shape;\n"
           "cached: those that an earlier run autotuned on such a GPU, where there\n"
           "are any; full: also autotunes those that are missing, which takes\n"
           "seconds, for this run and later ones",
           "cached", store_tuning},
          {"--seed", nullptr, "N",
           "seed for requests that have none of their own: the same run gives the\n"
           "same tokens",
           "0",
           [](Options& options, const OptionValue& value) {
             options.engine.seed =
                 value.as<std::uint64_t>(0, std::numeric_limits<std::int64_t>::max());
           }},
          memory_report_row(),
          {"--profile", nullptr, "FILE",
           "writes a timeline of all processes, for Perfetto or chrome://tracing", nullptr,
           store_profile},
      });
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
  if (engine.max_num_batched_tokens < engine.max_num_seqs) {
    refuse("--max-num-batched-tokens ", engine.max_num_batched_tokens,
           ": less than --max-num-seqs ", engine.max_num_seqs,
           ", and every running sequence takes one token of a step; pass ", engine.max_num_seqs,
           " or more, or a smaller --max-num-seqs");
  }
}

}  // namespace nvllm::launcher
