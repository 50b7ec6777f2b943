// ChunkedCache: keys and values of all sequences in host memory, in blocks; on the device the blocks that are being
// filled, those that their sequences keep there, and a ring through which the others come when a layer reads them.
//
//   host      [block][layer][keys, values]...   all blocks                     (host_blocks.h)
//   device    slots, [slot][layer]...           blocks that are open or kept   (device_slots.h)
//             ring slots, a layer's part each   blocks that are read           (load_ring.h)
//
// A layer's attention is a partial over what lies in slots, this step's rows too, and one for every few blocks that
// come through the ring one behind the other (StepReads::together), merged in a fixed order: results depend neither
// on the time that copies take nor on the size of the ring, but for one of less than 16 slots, half of which are
// attended to at once. A block that a step fills goes out layer by layer behind the compute, or
// behind the whole pass if that is a graph, so the host has all that is full, wherever else it is.
//
// A sequence keeps its first blocks in slots until it ends, as many as it was given (StepSequence::resident). Where
// that is all of them nothing comes through the ring, and attention is that to blocks on the device. Whoever shares a
// block that is kept reads it there. Where every block has a slot of its own there is no host memory.
//
// The host's cores may attend to a share of the blocks where they are, for sequences of one row, while the others
// come (host_attention.h): one part more, and always the last one.
//
// With Quest, a sequence's one row attends to the pages that Quest chooses, which are gathered from slots and
// straight from the host's memory, and the ring is left to the others.
//
// With a prompt policy, the rows of a long prompt attend to what the policy chooses out of all of the layer: its
// blocks are staged on the device as they come through the ring (staged_layer.h), one such prompt after the other,
// before the ring is the others'. The loads are the same.
//
// Everything else that a step reads is known before it, so loads run ahead of the compute, from layer to layer
// and, unless the step runs as a graph, from step to step. A block that several sequences read is loaded once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/device_slots.h"
#include "kvcache/host_attention.h"
#include "kvcache/host_blocks.h"
#include "kvcache/kv_cache.h"
#include "kvcache/load_ring.h"
#include "kvcache/offload_waits.h"
#include "kvcache/partial_sums.h"
#include "kvcache/policies/gathered_quest.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/staged_layer.h"
#include "kvcache/step_reads.h"
#include "kvcache/step_tables.h"

namespace nvllm::kvcache {

struct ChunkedOptions {
  std::int64_t blocks = 0;  // in host memory
  // For what is open or filled at once (most_write_slots), and for what stays.
  std::int64_t device_slots = 0;
  // There are as many slots as blocks, and every sequence keeps all of its own: nothing goes to the host.
  bool all_stay = false;
  std::int64_t ring_slots = 16;  // at least 2
  std::int64_t sequences = 0;    // that run at once
  std::int64_t rows = 0;         // of a step
  std::int64_t heads = 0;        // query heads of this rank
  int steps_ahead = 2;           // steps that may be enqueued at once
  bool quest = false;
  std::int64_t quest_budget = QuestLimits{}.budget;  // tokens
  PromptPolicy* prompts = nullptr;                   // of prompts of so many tokens and more
  std::int64_t least_tokens = 0;
  std::int64_t tokens = 0;  // of a sequence at most
  // Of the full blocks that sequences of one row read, the share that the host's cores attend to; absent: as
  // their speed and the link's are, which are measured at once. Not with Quest. And how many threads do.
  std::optional<double> host_share = 0.0;
  int host_threads = 0;  // 0: one for each core that the process may run on
  OffloadHooks hooks = {};
};

class ChunkedCache final : public KvCache {
 public:
  // Ledger: "kv device slots", "kv ring", "kv partials", "kv tokens", "kv staging" (device), "kv cache" and "host
  // attention" (pinned).
  ChunkedCache(Backend& backend, const BlockShape& shape, const ChunkedOptions& options);
  ~ChunkedCache() override;

  // Device memory, by arithmetic: of everything but what each block takes; and that.
  static std::size_t device_bytes(const BlockShape& shape, const ChunkedOptions& options);
  static std::size_t device_bytes_per_block(const BlockShape& shape, bool quest = false);

  TensorView tokens() const override { return tokens_; }
  TensorView block_map() const override { return tables_.block_map(); }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream& stream) override;
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override;
  void attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) override;
  void end_pass(Stream& stream) override;
  void end_step(Stream& stream) override;
  void end_sequence(std::uint32_t slot) override;
  KvTraffic traffic() const override { return traffic_; }

  double host_share() const { return host_share_; }
  // Where the share was measured: by what.
  const std::optional<HostAttention::Speeds>& host_speeds() const { return host_speeds_; }

 private:
  using Kind = StepReads::Kind;
  using Part = StepReads::Part;
  using Read = StepReads::Read;

  // Of begin_step().
  void open_blocks(const KvStep& step);
  void keep_blocks(const KvStep& step, Stream& stream);
  void bring_back(BlockId block, Stream& stream);
  bool name_work();
  void await_writes(Stream& stream);
  void settle(Stream& stream);
  void plan_loads();
  void plan_host_reads();
  void count(const KvStep& step);
  std::uint64_t most_gathered(const StepSequence& sequence) const;
  void measure_host();

  // Of a pass (chunked_attention.cc).
  bool by_host() const { return host_attention_ && host_attention_->planned(); }
  bool writes_out() const { return !options_.all_stay && !filled_.empty() && part_bytes_ > 0; }
  void write_out_layer(std::int64_t layer, Stream& stream);
  void write_out_blocks(Stream& stream);
  void* slot_part(BlockId block, std::int64_t layer) const;
  kernels::KvView slot_view(std::int64_t layer) const;
  GatheredQuest::Blocks quest_blocks(std::int64_t layer) const;
  void attend_all(std::int64_t layer, const kernels::Attention& args, Stream& stream);
  void attend_quest(std::int64_t layer, const kernels::Attention& args, Stream& stream);
  void attend_prompt(std::int64_t layer, std::size_t sequence, const kernels::Attention& args,
                     const kernels::KvView& residents, Stream& stream);
  void stage_slots(std::int64_t layer, const Part& part, Stream& stream);
  void take_reads(std::int64_t layer, std::size_t first, std::size_t end,
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
  PartialSums sums_;
  TensorView tokens_;
  std::optional<Quest> quest_;
  std::optional<GatheredQuest> gathered_;
  // Of a prompt policy.
  std::optional<StagedLayer> staging_;
  std::unique_ptr<Stream> writes_;
  std::unique_ptr<Event> stored_;
  std::vector<std::unique_ptr<Event>> written_;  // by layer: the last write-outs of it
  LoadRing ring_;
  std::optional<HostAttention> host_attention_;  // if the share is not 0
  double host_share_ = 0;
  std::optional<HostAttention::Speeds> host_speeds_;

  // By the scheduler's slot: the block that is not full, or kNoBlock; and the first blocks, which stay.
  std::vector<BlockId> open_;
  std::vector<std::vector<BlockId>> kept_;
  // Which step wrote it out last, by block and by slot of the device; 0: none. The stream is behind all write-outs
  // of steps up to settled_.
  std::vector<std::uint64_t> block_written_, slot_written_;
  std::uint64_t last_written_ = 0, settled_ = 0;

  // Of the step; the vectors are kept for their memory.
  std::uint64_t number_ = 0, work_ = 0;
  bool repeats_ = false, repeated_ = false;  // this one, the last one
  bool reuses_slots_ = false;
  std::vector<BlockId> filled_;
  StepReads reads_;
  std::vector<LoadRing::Load> loads_;  // of all layers
  bool host_reads_recent_ =
      false;  // some blocks of the host's cores may still be on their way to the host

  // Names that were given to the work of passes, behind that of passes without loads.
  static constexpr std::uint64_t kResidentWork = 0;
  std::uint64_t works_ = kResidentWork;
  KvTraffic traffic_;
};

}  // namespace nvllm::kvcache
