// EngineOptions: the engine's options on the command line. They are named as in vLLM.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/dtype.h"
#include "model/loading/quantization_choice.h"

namespace nvllm::runtime {

enum class Scheduling : std::uint8_t { prefill_first, mixed };
enum class Preemption : std::uint8_t { swap, recompute };

// Where keys and values are stored: `off` on the device (paged, or contiguous if max_seq_len is
// set), otherwise in host memory. `automatic`: off if they fit there, else depending on the
// prompts' lengths.
enum class KvOffload : std::uint8_t { off, chunked, layerwise, automatic };
// The resulting mode.
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
// Chunked mode: how much of a sequence stays on the device while it runs.
enum class Residence : std::uint8_t { none, some, all };
constexpr const char* name_of(KvMode mode, Residence residence) {
  if (mode != KvMode::chunked || residence == Residence::none) return name_of(mode);
  return residence == Residence::all ? "resident" : "hybrid";
}
enum class PrefillAttention : std::uint8_t { full, minference, xattention, automatic };
enum class DecodeAttention : std::uint8_t { full, quest };
// What the bits of a request's log-probabilities, and so its tokens, may depend on apart from the
// model, the request and its seed. `batch`: only on the number of ranks and the kind of device, not
// on other requests, chunking, caching and preemption. `tp`: not on the number of ranks either.
// `automatic`: given by the environment, else off.
enum class Invariance : std::uint8_t { automatic, off, batch, tp };
constexpr const char* name_of(Invariance invariance) {
  switch (invariance) {
    case Invariance::batch: return "batch";
    case Invariance::tp: return "tp";
    default: return "off";
  }
}
// Whether a row's bits are independent of the other rows of a batch and of chunking.
constexpr bool is_invariant(Invariance invariance) {
  return invariance == Invariance::batch || invariance == Invariance::tp;
}
// The type of keys and values in the cache; `automatic`: the type of the computation.
enum class KvCacheDtype : std::uint8_t { automatic, fp8_e4m3 };

// How the GPU's GEMM configurations are chosen: by heuristics for their shapes (off); by
// measurements of earlier runs, if any (cached); or the latter, and missing ones are measured now
// (full).
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
  double gpu_memory_utilization = 0.9;  // fraction of a GPU's total memory that this program may
                                        // take
  std::optional<std::int64_t> kv_cache_memory_bytes;  // per rank; absent: the rest of its memory
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  std::optional<std::int64_t> max_model_len;  // absent: the model's limit, or the longest that fits
  std::int64_t max_num_seqs = 256;
  std::int64_t max_num_batched_tokens = 8192;
  // On the CPU: target duration in seconds of a step with prefill rows; prompts are chunked
  // accordingly (StepPacer, runtime/engine/engine.h). 0: as many rows as max_num_batched_tokens
  // allows. Layer-wise prefill is not chunked.
  double prefill_step_s = 0;
  bool prefix_caching = true;
  // Linear attention: number of state snapshots kept on the device for prefix caching (absent: as
  // many as a quarter of the cache's memory holds), and the distance between snapshots of a prompt
  // (runtime/scheduler/sequence_memory.h).
  std::optional<std::int64_t> state_snapshots;
  std::int64_t state_snapshot_tokens = 128;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;  // recompute if the swap space is full
  // Maximum pinned host memory per rank; by default limited to what is available.
  static constexpr std::int64_t kUsualSwapSpace = std::int64_t{4} << 30;
  std::int64_t swap_space_bytes = kUsualSwapSpace;
  KvOffload kv_offload = KvOffload::off;
  std::optional<std::int64_t>
      kv_offloading_bytes;       // host memory of all ranks; absent: derived from the available
                                 // memory
  std::int64_t ring_slots = 16;  // chunked: device slots for block parts while they are read
  // chunked: blocks that stay on the device while their sequences run; absent: as many as fit.
  std::optional<std::int64_t> resident_blocks;
  // chunked: the share of the blocks read by decode for which the CPU computes attention; absent:
  // chosen from the speeds of CPU and link. And the CPU threads per rank; 0: its cores.
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 0;
  // chunked and layer-wise: tokens per block in host memory; absent: usual_transfer_block() of
  // max_model_len.
  std::optional<std::int64_t> transfer_block;
  std::int64_t kv_buffers = 4;   // layer-wise: number of layers on the device while they are read
  std::int64_t max_seq_len = 0;  // contiguous: maximum tokens of the one sequence; 0: not
                                 // contiguous
  PrefillAttention prefill_attention = PrefillAttention::full;
  DecodeAttention decode_attention = DecodeAttention::full;
  Invariance invariance = Invariance::automatic;
  // GPUs: a step with prefill of at least this many rows is split into two micro-batches, so that
  // one's all-reduce overlaps with the other's GEMMs; 0: no step is split.
  std::int64_t overlap_rows = 4096;
  bool graphs = true;            // --enforce-eager: false
  bool async_scheduling = true;  // enqueue one step ahead
  Tuning tuning = Tuning::cached;
  std::string gemm_tuning_file;  // runtime/runner/gemm_tuning.h; empty: no file
  std::uint64_t seed = 0;  // for requests without one: their seeds derive from it and their id
  bool profile = false;    // record a trace

  // The mode that the options select; `automatic` is resolved by then.
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

// The model's options on the command line.
struct ModelOptions {
  std::string path;  // a folder, a config.json or a .gguf file
  LoadFormat format = LoadFormat::automatic;
  std::string overrides = "";  // --hf-overrides: a JSON object, or empty
  // Absent: the model's own type, but bfloat16 instead of float32.
  std::optional<DType> dtype = std::nullopt;
  model::QuantizationChoice quantization = {};
  bool expert_parallel = false;  // each rank holds whole experts
};

// Conditions under which sparse attention is used, and its constraints on other options.

inline constexpr std::int64_t kQuestPageTokens = 16;

// Prompts shorter than this use full attention: selecting would cost more than it saves.
inline constexpr std::int64_t kMinSparseTokens = 1024;
// `auto` chooses XAttention from this prompt length on. It is faster for shorter prompts too (four
// times at 32K: benchmark prompt_policy), but there full attention takes less than half of a
// prompt's time, and is exact.
inline constexpr std::int64_t kAutomaticSparseTokens = 65536;

// Why the requested policy cannot be combined with the other options, in one line; empty: it can. A
// policy is never silently replaced by another one.
std::string sparse_refusal(const EngineOptions& options);
// Throws the refusal as an Error.
void check_sparse_attention(const EngineOptions& options);

// Why the requested invariance cannot be combined with the other options, in one line; empty: it
// can.
std::string invariance_refusal(const EngineOptions& options);
// Throws the refusal as an Error.
void check_invariance(const EngineOptions& options);

// Throws an Error if heads of this length are not supported in an FP8 cache that the options want.
void check_kv_cache_dtype(const EngineOptions& options, std::int64_t head_dim);

// Throws an Error of one line if a pipeline of several stages cannot be combined with the other
// options.
void check_stages(const EngineOptions& options, int stages);

// Constraints of attention on the CPU over blocks in host memory.

// Why it cannot be combined with the other options, in one line; empty: it can, or that depends on
// the mode that `--kv-offload auto` resolves to. It is never silently disabled.
std::string host_attention_refusal(const EngineOptions& options);
// Throws the refusal as an Error.
void check_host_attention(const EngineOptions& options);

}  // namespace nvllm::runtime
