// ChunkedCache: offloads the KV cache in chunks. The keys and values of all sequences are in host
// memory, in blocks. The device holds the blocks that are being filled, the blocks that sequences
// keep resident, and a ring of slots through which a layer reads all other blocks.
//
//   host      [block][layer][keys, values]...   all blocks                       (host_blocks.h)
//   device    slots, [slot][layer]...           blocks being filled or resident  (device_slots.h)
//             ring slots, one layer's part each blocks that a layer reads        (load_ring.h)
//
// A layer's attention is computed in parts: one part over the tokens in device slots, including
// this step's rows, and one per run of consecutive blocks in the ring (StepReads::run_length). The
// parts are combined in a fixed order (PartialAttention), so results depend neither on the
// duration of copies nor on the size of the ring, except for rings of fewer than 16 slots, which
// process half their slots at once. A block that a step fills is written out layer by layer after
// the compute, or after the whole pass if that is a CUDA graph. So the host has every full block,
// whether or not the device has it too.
//
// A sequence keeps its first blocks resident until it ends (StepSequence::resident). Other
// sequences that share such a block read it there. If that covers all blocks, the ring is unused
// and attention is the same as in a paged cache. If every block has its own slot (all_stay), there
// is no host memory.
//
// Host attention: for sequences with one row, the host's cores may compute attention over a share
// of the blocks in host memory, while the others are loaded (host_attention.h). Its result is the
// last part.
//
// Quest: a sequence with one row attends to the pages that Quest selects. They are gathered from
// device slots and directly from host memory, and do not use the ring.
//
// Prompt policies: the rows of a long prompt attend to tokens that the policy selects from the
// whole layer. Its blocks are assembled on the device as they arrive in the ring (StagedLayer), one
// such prompt after the other, before the ring serves the other sequences.
//
// With invariant results, rows attend to whole sequences: nothing is computed in parts, whose sums
// would have another order. A sequence whose blocks do not all lie in device slots is staged like
// such a prompt, and its rows attend to it as to a contiguous cache. So they have the same bits
// whatever blocks are resident, and whatever the size of blocks and of the ring.
//
// A step's reads are known before it starts. Loads therefore run ahead of the compute from layer to
// layer and, unless the step runs as a graph, from step to step. A block that several sequences
// read is loaded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kvcache/chunked/device_slots.h"
#include "kvcache/chunked/host_attention.h"
#include "kvcache/chunked/load_ring.h"
#include "kvcache/chunked/step_reads.h"
#include "kvcache/host_blocks.h"
#include "kvcache/kv_cache.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

// PartialAttention: computes the attention of a step's rows in parts, as parts of their tokens
// become readable, and combines the parts by their log-sum-exp.
//
//   parts.compute_first_part(attention over what is readable at once, stream);  // of all rows
//   parts.compute_part(attention of some rows over other tokens, row, stream);  // per further part
//   parts.combine(args, first row, stream, last);                 // to args.out and args.lse
//
// The parts of a row are disjoint and cover all of its tokens. They are combined in the order of
// these calls, in float32, so no bit of a result depends on when a part became available. The last
// part of a row stays separate until combine(), which combines it with the sum in one pass: the
// sums of thousands of rows do not fit caches.
//
// Not thread-safe; uses one stream. All work is only enqueued, and may be captured.
class PartialAttention {
 public:
  struct Limits {
    std::int64_t rows = 0;   // per step
    std::int64_t heads = 0;  // this rank's query heads
    std::int64_t head_dim = 0;
  };

  // Allocates bytes(limits). Ledger: "kv partials" (device).
  PartialAttention(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);

  // Both set `args.out` and `args.lse`.
  void compute_first_part(kernels::Attention args, Stream& stream);
  // `args`: for rows [first_row, first_row + args.q.shape[0]) of the step.
  void compute_part(kernels::Attention args, std::int64_t first_row, Stream& stream);
  // `args`: for the rows to finish, [first_row, first_row + args.q.shape[0]). last: an additional
  // part of the step's first rows that was computed elsewhere; optional.
  void combine(const kernels::Attention& args, std::int64_t first_row, Stream& stream,
               const kernels::CombineAttention::Part& last = {});

 private:
  // Accumulators and one partial, for `rows` rows.
  struct Sums {
    TensorView sum, sum_lse, part, part_lse;
  };
  Sums sums() const;
  // Rows [first, end) of the step.
  struct Range {
    std::int64_t first = 0, end = 0;
  };
  void sum_up(const Range& rows, Stream& stream);

  const Limits limits_;
  Buffer memory_;
  // Since compute_first_part(): the step's rows, and the disjoint ranges of those that have a
  // separate part in addition to their sum.
  std::int64_t rows_ = 0;
  std::vector<Range> beside_;
};

struct ChunkedOptions {
  std::int64_t blocks = 0;  // in host memory
  // Slots for blocks that are open or filled at once (max_write_slots), plus resident blocks.
  std::int64_t device_slots = 0;
  // Every block has its own slot permanently: nothing goes to the host.
  bool all_stay = false;
  std::int64_t ring_slots = 16;  // at least 2
  std::int64_t sequences = 0;    // max. running sequences
  std::int64_t rows = 0;         // per step
  std::int64_t heads = 0;        // query heads of this rank
  int steps_ahead = 2;           // steps that may be enqueued at once
  bool quest = false;
  std::int64_t quest_budget = QuestLimits{}.budget;  // tokens
  PromptPolicy* prompts = nullptr;                   // serves prompts of at least min_tokens tokens
  std::int64_t min_tokens = 0;
  // Rows attend to whole sequences. Not together with quest, prompts or host_share.
  bool whole_sequences = false;
  std::int64_t tokens = 0;  // max. per sequence
  // The share of the full blocks read by sequences of one row for which the host's cores compute
  // attention. nullopt: determined from the speeds of the cores and of the link, which are measured
  // when the cache is created. Must be 0 with Quest.
  std::optional<double> host_share = 0.0;
  int host_threads = 0;             // 0: one per core that the process may run on
  DType query_dtype = DType::bf16;  // with an E4m3 cache; other caches have the queries' type
  OffloadHooks hooks = {};
};

class ChunkedCache final : public KvCache {
 public:
  // Ledger: "kv device slots", "kv ring", "kv partials", "kv tokens", "kv staging" (device), "kv
  // cache" and "host attention" (pinned).
  ChunkedCache(Backend& backend, const BlockShape& shape, const ChunkedOptions& options);
  ~ChunkedCache() override;

  // Device memory, computed without allocating: a fixed part, and a part per block.
  static std::size_t device_bytes(const BlockShape& shape, const ChunkedOptions& options);
  static std::size_t device_bytes_per_block(const BlockShape& shape, bool quest = false);

  TensorView tokens() const override { return tokens_; }
  TensorView block_map() const override { return tables_.block_map(); }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream& stream) override;
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override;
  void run_attention(std::int64_t layer, const kernels::Attention& args,
                     std::int64_t decode_sequences, Stream& stream) override;
  void end_pass(Stream& stream) override;
  void end_step(Stream& stream) override;
  void end_sequence(std::uint32_t slot) override;
  void set_scales(const KvScales& scales) override;
  KvTraffic traffic() const override { return traffic_; }

  double host_share() const { return host_share_; }
  // The measured speeds, if host_share was determined from them.
  const std::optional<HostAttention::Speeds>& host_speeds() const { return host_speeds_; }

 private:
  using Kind = StepReads::Kind;
  using Part = StepReads::Part;
  using Read = StepReads::Read;

  // The stages of begin_step().
  void open_blocks(const KvStep& step);
  void keep_blocks(const KvStep& step, Stream& stream);
  void bring_back(BlockId block, Stream& stream);
  bool choose_graph_key();
  void await_writes(Stream& stream);
  void settle(Stream& stream);
  void plan_loads();
  void plan_host_reads();
  void count(const KvStep& step);
  std::uint64_t max_gathered(const StepSequence& sequence) const;
  void measure_host();

  // During a pass (chunked_attention.cc).
  bool by_host() const { return host_attention_ && host_attention_->planned(); }
  bool writes_out() const { return !options_.all_stay && !filled_.empty() && part_bytes_ > 0; }
  void write_out_layer(std::int64_t layer, Stream& stream);
  void write_out_blocks(Stream& stream);
  void* slot_part(BlockId block, std::int64_t layer) const;
  kernels::KvView slot_view(std::int64_t layer) const;
  GatheredQuest::Blocks block_locations(std::int64_t layer) const;
  void attend_to_everything(std::int64_t layer, const kernels::Attention& args, Stream& stream);
  void attend_by_quest(std::int64_t layer, const kernels::Attention& args, Stream& stream);
  void attend_by_policy(std::int64_t layer, std::size_t sequence, const kernels::Attention& args,
                        const kernels::KvView& residents, Stream& stream);
  void attend_to_whole(std::int64_t layer, std::size_t sequence, const kernels::Attention& args,
                       Stream& stream);
  void stage_slots(std::int64_t layer, const Part& part, Stream& stream);
  void consume_reads(std::int64_t layer, std::size_t first, std::size_t end,
                     const kernels::Attention& args, Stream& stream);
  void add_part(std::size_t load, std::size_t count, std::size_t sequence,
                const kernels::Attention& args, Stream& stream);
  void finish_sums(const kernels::Attention& args, Stream& stream);
  kernels::Attention rows_of(const kernels::Attention& args, std::size_t sequence) const;
  kernels::KvView ring_view(std::size_t load, std::size_t count) const;

  Backend& backend_;
  const BlockShape shape_;
  const ChunkedOptions options_;
  const std::size_t part_bytes_;
  HostBlocks host_;
  DeviceSlots slots_;
  Buffer slot_memory_, token_memory_;
  StepTables tables_;
  PartialAttention sums_;
  TensorView tokens_;
  std::optional<Quest> quest_;
  std::optional<GatheredQuest> gathered_;
  // With a prompt policy or whole sequences.
  std::optional<StagedLayer> staging_;
  std::unique_ptr<Stream> writes_;
  std::unique_ptr<Event> stored_;
  std::vector<std::unique_ptr<Event>> written_;  // by layer: its last write-outs
  LoadRing ring_;
  std::optional<HostAttention> host_attention_;  // unless the share is 0
  double host_share_ = 0;
  std::optional<HostAttention::Speeds> host_speeds_;

  // By the scheduler's slot: the sequence's block that is not full yet, or kNoBlock; and its
  // resident blocks.
  std::vector<BlockId> open_;
  std::vector<std::vector<BlockId>> kept_;
  // The step that last wrote a block out, by block and by device slot; 0: none. The stream already
  // waits for the write-outs of all steps up to settled_.
  std::vector<std::uint64_t> block_written_, slot_written_;
  std::uint64_t last_written_ = 0, settled_ = 0;

  // State of the current step; the vectors are members to keep their memory.
  std::uint64_t number_ = 0, graph_key_ = 0;
  bool capturable_ = false, last_capturable_ = false;  // this one, the last one
  bool reuses_slots_ = false;
  std::vector<BlockId> filled_;
  StepReads reads_;
  std::vector<LoadRing::Load> loads_;  // of all layers
  bool host_reads_recent_ = false;     // host attention reads blocks whose write-out may still run

  // The key of passes without loads; other passes get new, ascending keys.
  static constexpr std::uint64_t kResidentKey = 0;
  std::uint64_t last_graph_key_ = kResidentKey;
  KvTraffic traffic_;
};

}  // namespace nvllm::kvcache
