// EngineOptions: how the engine works, as the command line says it. Names as vLLM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/dtype.h"
#include "model/loading/quantization_choice.h"

namespace nvllm::runtime {

enum class Scheduling : std::uint8_t { prefill_first, mixed };
enum class Preemption : std::uint8_t { swap, recompute };

// Where keys and values are kept: `off` on the device (paged, or contiguous with max_seq_len), else
// in host memory. `automatic`: off if they fit there, else as the prompts' lengths suggest.
enum class KvOffload : std::uint8_t { off, chunked, layerwise, automatic };
// What it comes to.
enum class KvMode : std::uint8_t { paged, contiguous, chunked, layerwise };
constexpr const char* name_of(KvMode mode) {
  switch (mode) {
    case KvMode::paged: return "paged";
    case KvMode::contiguous: return "contiguous";
    case KvMode::chunked: return "chunked";
    case KvMode::layerwise: return "layerwise";
  }
  return "";
}
// Chunked: how much of a sequence stays on the device as long as it runs.
enum class Residence : std::uint8_t { none, some, all };
constexpr const char* name_of(KvMode mode, Residence residence) {
  if (mode != KvMode::chunked || residence == Residence::none) return name_of(mode);
  return residence == Residence::all ? "resident" : "hybrid";
}
enum class PrefillAttention : std::uint8_t { full, minference, xattention, automatic };
enum class DecodeAttention : std::uint8_t { full, quest };
// What the bits of a request's log-probabilities, and so its tokens, may depend on beside the
// model, the request and its seed. `batch`: on the number of ranks and the kind of device alone,
// not on what else runs, chunks, caches and preemption. `tp`: nor on the number of ranks.
// `automatic`: as the environment says, else off.
enum class Invariance : std::uint8_t { automatic, off, batch, tp };
constexpr const char* name_of(Invariance invariance) {
  switch (invariance) {
    case Invariance::batch: return "batch";
    case Invariance::tp: return "tp";
    default: return "off";
  }
}
// Whether a row's bits depend neither on company nor on chunks.
constexpr bool is_invariant(Invariance invariance) {
  return invariance == Invariance::batch || invariance == Invariance::tp;
}
// The type of keys and values in the cache; `automatic`: that of the computation.
enum class KvCacheDtype : std::uint8_t { automatic, fp8_e4m3 };

// How the GPU's GEMM configurations are chosen: by what is known of their shapes; by measurements
// of earlier runs where there are any; or these, and what is missing is measured now.
enum class Tuning : std::uint8_t { off, cached, full };
constexpr const char* name_of(Tuning tuning) {
  switch (tuning) {
    case Tuning::off: return "off";
    case Tuning::cached: return "cached";
    case Tuning::full: return "full";
  }
  return "";
}

struct EngineOptions {
  std::int64_t block_size = 16;
  double gpu_memory_utilization = 0.9;  // of a GPU's whole memory, by everything this program takes
  std::optional<std::int64_t> kv_cache_memory_bytes;  // of each rank; absent: what is left of it
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  std::optional<std::int64_t> max_model_len;  // absent: the model's limit, or what fits
  std::int64_t max_num_seqs = 256;
  std::int64_t max_num_batched_tokens = 8192;
  // On the CPU: how long a step with a prompt's rows should take; prompts are cut to fit
  // (runtime/engine/step_pacer.h). 0: as many rows as the line above allows, however long they
  // take. Layer-wise prefill is not cut.
  double prefill_step_s = 0;
  bool prefix_caching = true;
  // Linear attention: snapshots of a sequence's states that are kept on the device for prefix
  // caching; absent: as many as a quarter of the cache's memory holds. And how far apart those of a
  // prompt are (runtime/scheduler/sequence_memory.h).
  std::optional<std::int64_t> state_snapshots;
  std::int64_t state_snapshot_tokens = 128;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;  // recompute where the swap space is full
  // Pinned host memory of each rank at most; by default what there is, up to that.
  static constexpr std::int64_t kUsualSwapSpace = std::int64_t{4} << 30;
  std::int64_t swap_space_bytes = kUsualSwapSpace;
  KvOffload kv_offload = KvOffload::off;
  std::optional<std::int64_t>
      kv_offloading_bytes;       // host memory of all ranks; absent: what there is
  std::int64_t ring_slots = 16;  // chunked: parts of blocks on the device while they are read
  // chunked: blocks that stay on the device while their sequences run; absent: as many as it has
  // room for.
  std::optional<std::int64_t> resident_blocks;
  // chunked: of the blocks that decoding reads, the share that the host's cores attend to; absent:
  // as their speed and the link's are. And their threads on each rank; 0: its cores.
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 0;
  // chunked and layer-wise: tokens of a block in host memory; absent: usual_transfer_block() of
  // max_model_len.
  std::optional<std::int64_t> transfer_block;
  std::int64_t kv_buffers = 4;   // layer-wise: layers on the device while they are read
  std::int64_t max_seq_len = 0;  // contiguous: tokens of the one sequence; 0: not contiguous
  PrefillAttention prefill_attention = PrefillAttention::full;
  DecodeAttention decode_attention = DecodeAttention::full;
  Invariance invariance = Invariance::automatic;
  // GPUs: a step of at least so many rows, but for decode steps, goes through the layers in two
  // halves, and while the ranks sum up what one has made the other has the GEMMs; 0: none does.
  std::int64_t overlap_rows = 0;
  bool graphs = true;            // --enforce-eager: false
  bool async_scheduling = true;  // one step ahead
  Tuning tuning = Tuning::cached;
  std::string gemm_tuning_file;  // runtime/runner/gemm_tuning.h; empty: nothing is kept
  std::uint64_t seed = 0;  // of requests that have none: theirs come from this one and their number
  bool profile = false;    // record a trace

  // What they ask for; an automatic choice is settled by then.
  KvMode kv_mode() const {
    if (max_seq_len > 0) return KvMode::contiguous;
    if (kv_offload == KvOffload::chunked) return KvMode::chunked;
    return kv_offload == KvOffload::layerwise ? KvMode::layerwise : KvMode::paged;
  }

  template <class Archive>
  void serialize(Archive& archive) {
    archive(block_size, gpu_memory_utilization, kv_cache_memory_bytes, kv_cache_dtype,
            max_model_len, max_num_seqs, max_num_batched_tokens, prefill_step_s, prefix_caching,
            state_snapshots, state_snapshot_tokens, scheduling, preemption, swap_space_bytes,
            kv_offload, kv_offloading_bytes, ring_slots, resident_blocks, host_attention,
            host_threads, transfer_block, kv_buffers, max_seq_len, prefill_attention,
            decode_attention, invariance, overlap_rows, graphs, async_scheduling, tuning,
            gemm_tuning_file, seed, profile);
  }
};

enum class LoadFormat : std::uint8_t { automatic, dummy, safetensors, gguf };

// Which model, and how, as the command line says it.
struct ModelOptions {
  std::string path;  // a folder, a config.json or a .gguf file
  LoadFormat format = LoadFormat::automatic;
  std::string overrides = "";  // --hf-overrides: a JSON object, or empty
  // Absent: the model's own, bfloat16 where that is float32.
  std::optional<DType> dtype = std::nullopt;
  model::QuantizationChoice quantization = {};
  bool expert_parallel = false;  // ranks have whole experts
};

// When sparse attention is used, and what it asks of other options.

inline constexpr std::int64_t kQuestPageTokens = 16;

// Prompts shorter than this attend to everything: so little that choosing costs more than it saves.
inline constexpr std::int64_t kMinSparseTokens = 1024;
// From here on `auto` chooses XAttention. It is faster below, too (four times at 32K: the benchmark
// prompt_policy), but there attention to everything is less than half of a prompt's time, and
// leaves nothing out.
inline constexpr std::int64_t kAutomaticSparseTokens = 65536;

// Why a policy that the options ask for cannot be served with the others, in one line; empty: it
// can. Nothing is ever replaced by another policy.
std::string sparse_refusal(const EngineOptions& options);
// The same as an Error.
void check_sparse_attention(const EngineOptions& options);

// Why results cannot be invariant with what else the options ask for, in one line; empty: they can.
std::string invariance_refusal(const EngineOptions& options);
// The same as an Error, also where the ranks are on GPUs, or some weights are quantized.
struct RanksHave {
  bool gpus = false, quantized_weights = false;
};
void check_invariance(const EngineOptions& options, const RanksHave& have);

// What a cache of FP8 can be used with.

// Why it cannot with what else the options ask for, in one line; empty: it can.
std::string kv_cache_dtype_refusal(const EngineOptions& options);
// The same as an Error, also if heads of this length cannot be kept in FP8.
void check_kv_cache_dtype(const EngineOptions& options, std::int64_t head_dim);

// What a pipeline of several stages can be used with: an Error, one line, if not with what else the
// options ask for.
void check_stages(const EngineOptions& options, int stages);

// Which modes of the cache let the host's cores attend.

// Why what the options ask for cannot be, in one line; empty: it can, or depends on what
// `--kv-offload auto` comes to. It is never left out in silence.
std::string host_attention_refusal(const EngineOptions& options);
// The same as an Error.
void check_host_attention(const EngineOptions& options);

}  // namespace nvllm::runtime
