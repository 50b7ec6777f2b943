#include "runtime/engine/testing/invariance_ways.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "model/decoder.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

class Ways {
 public:
  Ways(const OpenModel& model, std::int64_t rows) : model_(model), rows_(rows) {}

  std::vector<Way> all() {
    add("all at once");
    for (const std::int64_t chunk : {1, 7, 16, 40, 100, 256}) {
      if (chunk > rows_) break;
      EngineOptions& options = add(str("in chunks of ", chunk)).options;
      options.max_num_batched_tokens = chunk;
      options.max_num_seqs = std::min(options.max_num_seqs, chunk);
    }
    for (const std::int64_t block : {4, 32}) {
      add(str("blocks of ", block)).options.block_size = block;
    }
    add("prefixes cached").prompts_first = true;
    add("no prefixes cached").options.prefix_caching = false;
    add("not ahead").options.async_scheduling = false;
    add("without graphs").options.graphs = false;
    add("prefill first").options.scheduling = Scheduling::prefill_first;
    add_preempted();
    add("contiguous").options.max_seq_len = kMaxModelLen;
    add_offloaded();
    return ways_;
  }

  // The configurations with several ranks, combined with some of the above.
  std::vector<Way> with_ranks() {
    const std::vector<int> numbers =
        ranks_share_gpus() ? std::vector{2, 3} : std::vector{1, 2, 3, 4};
    for (const int ranks : numbers) add(str(ranks, " ranks")).ranks = ranks;
    if (ranks_share_gpus()) return ways_;
    Way* way = &add("2 ranks, in chunks of 7");
    way->ranks = 2;
    way->options.max_num_batched_tokens = way->options.max_num_seqs = 7;
    if (!is_hybrid()) {
      way = &add("2 ranks, prefixes cached");
      way->ranks = 2;
      way->prompts_first = true;
      way = &add("3 ranks, preempted by swapping");
      way->ranks = 3;
      make_tiny(*way);
      way->happened = &SchedulerStatistics::swapped_blocks;
    }
    if (in_chunks() && rows_ == kManyRows) {
      add_chunks("1 rank, ", {.block = 48, .ring = 16, .resident = 0, .rows = 40});
      add_chunks("2 ranks, ", {.block = 16, .ring = 3, .resident = 30, .rows = rows_}).ranks = 2;
      add_chunks("3 ranks, ", {.block = 112, .ring = 2, .resident = 0, .rows = 100}).ranks = 3;
    }
    if (model_.config.kv_shared_layers > 0) return ways_;
    way = &add("2 stages of 2 ranks");
    way->ranks = way->stages = 2;
    return ways_;
  }

 private:
  Way& add(const std::string& name) {
    ways_.push_back({.name = name, .options = usual_options(model_, rows_)});
    return ways_.back();
  }

  bool is_hybrid() const { return model_.config.linear_attention.key_heads > 0; }

  void add_preempted() {
    Way* way = &add("preempted by swapping");
    make_tiny(*way);
    way->happened =
        is_hybrid() ? &SchedulerStatistics::swapped_states : &SchedulerStatistics::swapped_blocks;
    way = &add("preempted by recomputing");
    way->options.prefix_caching = false;  // the prefix cache might still hold all tokens
    make_tiny(*way);
    way->options.preemption = Preemption::recompute;
    way->happened = &SchedulerStatistics::recomputed_tokens;
    if (!is_hybrid()) return;
    way = &add("from snapshots of states, of which there are few, after preemption");
    way->prompts_first = true;
    make_tiny(*way);
    way->options.preemption = Preemption::recompute;
    way->happened = &SchedulerStatistics::restored_states;
  }

  void add_offloaded() {
    if (model_.config.kv_shared_layers > 0) return;
    Way* way = &add("layer-wise");
    way->options.kv_offload = KvOffload::layerwise;
    way->options.transfer_block = 16;
    if (!in_chunks()) return;
    way = &add("offloaded in chunks, all of which stay");
    way->options.kv_offload = KvOffload::chunked;
    way->options.transfer_block = 16;
    way = &add("offloaded in chunks");
    way->options.kv_offload = KvOffload::chunked;
    way->options.resident_blocks = 0;
    way->options.transfer_block = 16;
    way->options.ring_slots = 3;
    if (way->options.invariance == Invariance::off) {
      way->exception = "partial results of the chunks are combined by their log-sum-exp";
    }
    add_chunks("invariant, ", {.block = 16, .ring = 3, .resident = 0, .rows = rows_});
    if (rows_ < kManyRows) return;
    add_chunks("invariant, prefixes cached, ",
               {.block = 48, .ring = 2, .resident = 20, .rows = 100})
        .prompts_first = true;
    add_chunks("invariant, ", {.block = 112, .ring = 16, .resident = 0, .rows = 7});
  }

  // Whether there are keys and values in chunks, and invariant results of these.
  bool in_chunks() const {
    return model_.config.windows.empty() && !model_.config.differs_in_heads();
  }

  // rows: of a step, at most.
  struct Chunks {
    std::int64_t block, ring, resident, rows;
  };
  Way& add_chunks(const std::string& prefix, const Chunks& chunks) {
    Way& way = add(str(prefix, "offloaded in chunks of ", chunks.block, ", a ring of ", chunks.ring,
                       ", ", chunks.resident, " chunks stay"));
    EngineOptions& options = way.options;
    options.invariance = model_.tp_invariant ? Invariance::tp : Invariance::batch;
    options.kv_offload = KvOffload::chunked;
    options.transfer_block = chunks.block;
    options.ring_slots = chunks.ring;
    options.resident_blocks = chunks.resident;
    options.max_num_batched_tokens = std::min(chunks.rows, rows_);
    options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
    way.loads = true;
    return way;
  }

  // A cache that holds little more than one sequence. If layers with a window form a group of their
  // own, this holds for the other group, and the window group has as many bytes.
  void make_tiny(Way& way) const {
    way.options.block_size = 4;  // so that generation soon needs more blocks
    const model::ModelConfig& config = model_.config;
    const layers::Shard shard{.rank = 0, .ranks = way.ranks, .tp_invariant = model_.tp_invariant};
    const model::Decoder decoder(config, shard, model_.dtype);
    const kvcache::BlockShape shape = decoder.block_shape(way.options.block_size, model_.dtype);
    const std::int64_t blocks = (kMaxModelLen + 16) / way.options.block_size;
    way.options.kv_cache_memory_bytes = blocks * static_cast<std::int64_t>(shape.bytes());
    if (is_hybrid() && way.options.prefix_caching) {
      constexpr std::int64_t kSnapshots = 4;
      way.options.state_snapshots = kSnapshots;
      *way.options.kv_cache_memory_bytes +=
          kSnapshots * static_cast<std::int64_t>(model::DecoderMemory::state_bytes(decoder, 1));
    }
    if (config.window_group() == 0) return;
    const std::int64_t all = std::ranges::count(config.windows, 0);
    const auto block_bytes = [&](std::int64_t layers) {
      return static_cast<std::int64_t>(shape.kv_bytes()) / config.layers * layers +
             static_cast<std::int64_t>(shape.token_bytes());
    };
    const std::int64_t bytes = blocks * block_bytes(all);
    const std::int64_t window_block = block_bytes(config.layers - all);
    way.options.kv_cache_memory_bytes = bytes + bytes / window_block * window_block;
  }

  const OpenModel& model_;
  const std::int64_t rows_;
  std::vector<Way> ways_;
};

// Whether weights stay quantized on the CPU.
bool is_quantized(const OpenModel& model) {
  const model::Decoder decoder(model.config, {}, model.dtype);
  choose_quantization(decoder, model);
  return decoder.quantized();
}

}  // namespace

bool on_gpu() {
  return testing::device_under_test() == DeviceKind::cuda;
}

bool ranks_share_gpus() {
  return on_gpu() && !testing::why_no_ranks(4).empty();
}

EngineOptions usual_options(const OpenModel& model, std::int64_t rows) {
  EngineOptions options;
  const bool batch = on_gpu() || (rows > kFewRows && is_quantized(model));
  options.invariance = model.tp_invariant ? Invariance::tp
                       : batch            ? Invariance::batch
                                          : Invariance::off;
  options.max_model_len = kMaxModelLen;
  options.max_num_seqs = std::min<std::int64_t>(32, rows);
  options.max_num_batched_tokens = rows;
  options.swap_space_bytes = std::int64_t{64} << 20;
  options.state_snapshot_tokens = 16;
  // Each of several ranks would otherwise take most of the GPU that they share.
  if (model.tp_invariant && on_gpu()) options.kv_cache_memory_bytes = std::int64_t{256} << 20;
  return options;
}

std::vector<Way> all_ways(const OpenModel& model, std::int64_t rows) {
  return Ways(model, rows).all();
}

std::vector<Way> ways_with_ranks(const OpenModel& model, std::int64_t rows) {
  return Ways(model, rows).with_ranks();
}

}  // namespace nvllm::runtime
