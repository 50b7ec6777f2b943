// How the engine works. Names and meanings as vLLM's, where it has them.
#include <bit>

#include "launcher/option_rows.h"
#include "runtime/host_attention_options.h"
#include "runtime/sparse_options.h"

namespace nvllm::launcher {
namespace {

using runtime::KvOffload;
using runtime::Preemption;
using runtime::Scheduling;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // of a sequence, of a step
constexpr std::int64_t kMostSequences = 65536;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMostBlockSize = 1024;
constexpr double kMostGib = 1 << 20;
constexpr std::int64_t kMostBuffers = 1024;
constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kTransferMultiple = 16;

std::int64_t gib(const OptionValue& value, double least) {
  constexpr double kGib = std::int64_t{1} << 30;
  return static_cast<std::int64_t>(value.real(least, kMostGib) * kGib);
}

void store_block_size(Options& options, const OptionValue& value) {
  options.engine.block_size = value.whole(1, kMostBlockSize);
  if (!std::has_single_bit(static_cast<std::uint64_t>(options.engine.block_size))) {
    refuse(value.name(), ' ', value.text(), ": not a power of two; pass 16, 32, 64 or the like");
  }
}

void store_utilization(Options& options, const OptionValue& value) {
  options.engine.gpu_memory_utilization = value.real(0.01, 1);
}

void store_kv_bytes(Options& options, const OptionValue& value) {
  options.engine.kv_cache_memory_bytes = value.amount(1, kMostBytes);
}

void store_max_model_len(Options& options, const OptionValue& value) {
  options.engine.max_model_len = value.amount(1, kMostTokens);
}

void store_max_seq_len(Options& options, const OptionValue& value) {
  options.engine.max_seq_len = value.amount(0, kMostTokens);
}

void store_max_num_seqs(Options& options, const OptionValue& value) {
  options.engine.max_num_seqs = value.whole(1, kMostSequences);
}

void store_max_num_batched_tokens(Options& options, const OptionValue& value) {
  options.engine.max_num_batched_tokens = value.amount(1, kMostTokens);
}

void store_prefix_caching(Options& options, const OptionValue& value) {
  options.engine.prefix_caching = value.on();
}

void store_scheduling(Options& options, const OptionValue& value) {
  options.engine.scheduling = value.one_of<Scheduling>(
      "policy", {{"prefill-first", Scheduling::prefill_first}, {"mixed", Scheduling::mixed}});
}

void store_preemption(Options& options, const OptionValue& value) {
  options.engine.preemption = value.one_of<Preemption>(
      "way to preempt", {{"swap", Preemption::swap}, {"recompute", Preemption::recompute}});
}

void store_swap_space(Options& options, const OptionValue& value) {
  options.engine.swap_space_bytes = gib(value, 0);
}

void store_kv_offload(Options& options, const OptionValue& value) {
  options.engine.kv_offload =
      value.one_of<KvOffload>("place of keys and values", {{"off", KvOffload::off},
                                                           {"chunked", KvOffload::chunked},
                                                           {"layerwise", KvOffload::layerwise},
                                                           {"auto", KvOffload::automatic}});
}

void store_prefill_attention(Options& options, const OptionValue& value) {
  using runtime::PrefillAttention;
  options.engine.prefill_attention = value.one_of<PrefillAttention>(
      "attention of prompts", {{"full", PrefillAttention::full},
                               {"minference", PrefillAttention::minference},
                               {"xattention", PrefillAttention::xattention},
                               {"auto", PrefillAttention::automatic}});
}

void store_decode_attention(Options& options, const OptionValue& value) {
  using runtime::DecodeAttention;
  options.engine.decode_attention = value.one_of<DecodeAttention>(
      "attention of answers", {{"full", DecodeAttention::full}, {"quest", DecodeAttention::quest}});
}

// What only keys and values in host memory have a use for.
struct HostCacheOption {
  const char* name;
  bool chunked, layerwise;  // which of them
};
constexpr HostCacheOption kHostCacheOptions[] = {
    {"--kv-offloading-size", true, true}, {"--transfer-block", true, true},
    {"--ring-slots", true, false},        {"--kv-resident-blocks", true, false},
    {"--kv-host-threads", true, false},   {"--kv-buffers", false, true}};

void note(Options& options, const char* name, const OptionValue& value) {
  options.host_cache.erase(name);
  if (value.text() != "auto") options.host_cache.emplace(name, value.text());
}

void refuse_what_has_no_use(const Options& options) {
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
  note(options, "--kv-offloading-size", value);
  options.engine.kv_offloading_bytes = gib(value, 0.001);
}

void store_transfer_block(Options& options, const OptionValue& value) {
  note(options, "--transfer-block", value);
  if (value.text() == "auto") return options.engine.transfer_block.reset();
  const std::int64_t tokens = value.amount(kTransferMultiple, kMostTokens);
  if (tokens % kTransferMultiple != 0) {
    refuse(value.name(), ' ', value.text(), ": not a multiple of ", kTransferMultiple, "; pass ",
           tokens / kTransferMultiple * kTransferMultiple, " or ",
           (tokens / kTransferMultiple + 1) * kTransferMultiple);
  }
  options.engine.transfer_block = tokens;
}

void store_ring_slots(Options& options, const OptionValue& value) {
  note(options, "--ring-slots", value);
  if (value.text() == "1") {
    refuse(
        value.name(),
        " 1: a slot cannot be loaded while it is read, and nothing would be loaded ahead; pass 2 "
        "or more");
  }
  options.engine.ring_slots = value.whole(2, kMostBuffers);
}

void store_resident_blocks(Options& options, const OptionValue& value) {
  note(options, "--kv-resident-blocks", value);
  std::optional<std::int64_t>& blocks = options.engine.resident_blocks;
  if (value.text() == "auto") {
    blocks.reset();
  } else {
    if (value.text().find_first_of("0123456789") == std::string_view::npos) {
      refuse(value.name(), " '", value.text(),
             "': not a number of blocks; pass auto, or 0 or more");
    }
    blocks = value.whole(0, kMostTokens);
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
  note(options, "--kv-host-threads", value);
  options.engine.host_threads = value.whole(1, kMostThreads);
}

void store_kv_buffers(Options& options, const OptionValue& value) {
  note(options, "--kv-buffers", value);
  if (value.text() == "1") {
    refuse(value.name(),
           " 1: a buffer cannot be loaded while it is read, and nothing would be loaded ahead; "
           "pass 2 or more");
  }
  options.engine.kv_buffers = value.whole(2, kMostBuffers);
}

void store_enforce_eager(Options& options, const OptionValue& value) {
  options.engine.graphs = !value.on();
}

void store_async_scheduling(Options& options, const OptionValue& value) {
  options.engine.async_scheduling = value.on();
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
  return {
      {"--max-model-len", nullptr, "N",
       "the longest sequence, prompt and answer together; 32k: thousands,\n"
       "32K: of 1024",
       "the model's limit, or what fits", store_max_model_len},
      {"--max-seq-len", nullptr, "N",
       "keeps keys and values of one sequence at a time, of at most N tokens,\n"
       "in one piece of memory instead of blocks; 0: in blocks",
       "0", store_max_seq_len},
      {"--max-num-seqs", nullptr, "N", "how many sequences run at a time", "256",
       store_max_num_seqs},
      {"--max-num-batched-tokens", nullptr, "N",
       "how many tokens a step computes; longer prompts take several steps", "8192",
       store_max_num_batched_tokens},
      {"--block-size", nullptr, "N", "tokens of a block of the KV cache; a power of two", "16",
       store_block_size},
      {"--gpu-memory-utilization", nullptr, "FRACTION",
       "how much of a GPU's memory this program takes for everything", "0.9", store_utilization},
      {"--kv-cache-memory-bytes", nullptr, "BYTES",
       "memory of each rank's KV cache: 4G, 512M (of 1024), or bytes", "what is left",
       store_kv_bytes},
      {"--enable-prefix-caching", "--no-enable-prefix-caching", nullptr,
       "whether prompts that begin alike share what was computed of them", "on",
       store_prefix_caching},
      {"--scheduling", nullptr, "prefill-first|mixed",
       "prefill-first: a step computes prompts or answers, prompts first;\n"
       "mixed: both at once",
       "mixed", store_scheduling},
      {"--preemption", nullptr, "swap|recompute",
       "what happens to the newest sequence when the cache is full: it waits\n"
       "in host memory, or is computed anew later",
       "swap", store_preemption},
      {"--swap-space", nullptr, "GIB", "host memory of each rank for that", "4, or what there is",
       store_swap_space},
      {"--kv-offload", nullptr, "off|chunked|layerwise|auto",
       "keeps keys and values in host memory; chunked: blocks that do not fit\n"
       "on the device come back to be read, through a ring; layerwise: a prompt\n"
       "goes through one layer after the other, and whole layers come back;\n"
       "auto: off if --max-num-seqs sequences of --max-model-len fit on the\n"
       "device, layerwise for one at a time of which less than half does, else\n"
       "chunked",
       "off", store_kv_offload},
      {"--kv-offloading-size", nullptr, "GIB", "host memory of all ranks for that",
       "half of what is available", store_kv_offloading_size},
      {"--ring-slots", nullptr, "N", "chunked: parts of blocks on the device while they are read",
       "16", store_ring_slots},
      {"--transfer-block", nullptr, "auto|N",
       "tokens of a block in host memory; a multiple of 16; auto: an eighth of\n"
       "--max-model-len, as a power of two from 256 to 4096",
       "auto", store_transfer_block},
      {"--kv-resident-blocks", nullptr, "auto|N",
       "chunked: blocks that stay on the device while their sequences run,\n"
       "and need not come back; auto: as many as there is room for; 0: all\n"
       "blocks come through the ring",
       "auto", store_resident_blocks},
      {"--kv-host-attention", nullptr, "off|auto|SHARE",
       "chunked: how much of what answers attend to the host's cores do, where\n"
       "it lies, while the rest comes to the device; auto: as much as they are\n"
       "faster, which is measured when the engine starts; 0.5: half of it",
       "off", store_host_attention},
      {"--kv-host-threads", nullptr, "N", "threads of each rank for that",
       "the cores near its GPU, shared among ranks", store_host_threads},
      {"--kv-buffers", nullptr, "N",
       "layerwise: layers on the device at a time, those to be read loading\n"
       "meanwhile",
       "4", store_kv_buffers},
      {"--prefill-attention", nullptr, "full|minference|xattention|auto",
       "what prompts of 1024 tokens or more attend to; full: everything; auto:\n"
       "xattention from 65536 tokens on, full below",
       "full", store_prefill_attention},
      {"--decode-attention", nullptr, "full|quest",
       "what tokens that are generated attend to; quest: the 128 pages of 16\n"
       "tokens that promise most",
       "full", store_decode_attention},
      {"--enforce-eager", "--no-enforce-eager", nullptr, "works without CUDA graphs", "off",
       store_enforce_eager},
      {"--async-scheduling", "--no-async-scheduling", nullptr,
       "whether the next step is chosen while one runs", "on", store_async_scheduling},
      {"--tune", nullptr, "off|cached|full",
       "how products are computed on GPUs; off: as their shapes suggest;\n"
       "cached: as an earlier run measured it on such a GPU, where one did;\n"
       "full: the same, and measures what is missing, which takes seconds, for\n"
       "this run and later ones",
       "cached", store_tuning},
      {"--seed", nullptr, "N",
       "what the seeds of requests that have none are made from: the same\n"
       "run gives the same tokens",
       "0",
       [](Options& options, const OptionValue& value) {
         options.engine.seed = value.as<std::uint64_t>(0, std::numeric_limits<std::int64_t>::max());
       }},
      memory_report_row(),
      {"--profile", nullptr, "FILE",
       "writes what every process did when, for Perfetto or chrome://tracing", nullptr,
       store_profile},
  };
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
  refuse_what_has_no_use(options);
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
