#include "kvcache/chunked/chunked_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace nvllm::kvcache {
namespace {

PartialAttention::Limits sum_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.rows = options.rows, .heads = options.heads, .head_dim = shape.head_dim};
}

QuestLimits quest_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.shape = shape,
          .blocks = options.blocks,
          .sequences = GatheredQuest::kSequences,
          .tokens = options.tokens,
          .budget = options.quest_budget};
}

// The blocks of the longest possible sequence.
std::int64_t max_blocks(const BlockShape& shape, const ChunkedOptions& options) {
  return divide_up(options.tokens, shape.block_size);
}

StepReads::Rules read_rules(const BlockShape& shape, const ChunkedOptions& options) {
  return {.blocks = options.blocks,
          .block_size = shape.block_size,
          .heads = shape.layer_bytes() > 0,
          .quest = options.quest,
          .max_blocks = max_blocks(shape, options),
          .prompts = options.prompts != nullptr,
          .min_tokens = options.min_tokens,
          .whole_sequences = options.whole_sequences};
}

// Whether sequences are put together on the device.
bool stages(const ChunkedOptions& options) {
  return options.prompts != nullptr || options.whole_sequences;
}

StepTables::Limits table_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.blocks = options.blocks,
          .block_size = shape.block_size,
          .slots = options.device_slots,
          .ring_slots = options.ring_slots,
          .ring_at_once = LoadRing::at_once(options.ring_slots),
          .sequences = options.sequences,
          .steps_ahead = options.steps_ahead,
          .addresses = options.quest};
}

}  // namespace

ChunkedCache::ChunkedCache(Backend& backend, const BlockShape& shape, const ChunkedOptions& options)
    : backend_(backend),
      shape_(shape),
      options_(options),
      part_bytes_(shape.layer_bytes()),
      host_(backend, shape, options.all_stay ? 0 : options.blocks),
      slots_(options.device_slots, options.blocks),
      slot_memory_(backend.allocate(MemoryKind::device,
                                    static_cast<std::size_t>(slots_.size()) * shape.kv_bytes(),
                                    "kv device slots")),
      token_memory_(backend.allocate(MemoryKind::device,
                                     static_cast<std::size_t>(options.blocks) * shape.token_bytes(),
                                     "kv tokens")),
      tables_(backend, table_limits(shape, options)),
      sums_(backend, sum_limits(shape, options)),
      tokens_(token_memory_.data(), DType::i32, {options.blocks, shape.block_size}),
      writes_(backend.create_stream()),
      stored_(backend.create_event()),
      ring_(backend, options.ring_slots, part_bytes_, options_.hooks),
      open_(static_cast<std::size_t>(options.sequences), kNoBlock),
      kept_(static_cast<std::size_t>(options.sequences)),
      block_written_(static_cast<std::size_t>(options.blocks)),
      slot_written_(static_cast<std::size_t>(slots_.size())),
      reads_(read_rules(shape, options)) {
  NVLLM_CHECK(shape.by_layer.empty(), "layers differ in their heads");
  if (options.quest) {
    quest_.emplace(backend, quest_limits(shape, options));
    gathered_.emplace(backend, *quest_, shape);
  }
  if (stages(options)) staging_.emplace(backend, shape, max_blocks(shape, options));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    written_.push_back(backend.create_event());
  }
  NVLLM_CHECK(!options.all_stay || options.device_slots >= options.blocks, options.device_slots,
              " slots of ", options.blocks);
  NVLLM_CHECK(!options.quest || options.host_share == 0.0, "host attention beside Quest");
  NVLLM_CHECK(!options.whole_sequences || options.host_share == 0.0, "host attention is a part");
  if (options.host_share != 0.0 && !options.all_stay && part_bytes_ > 0 && options.heads > 0) {
    host_attention_.emplace(backend,
                            HostAttention::Limits{.shape = shape,
                                                  .heads = options.heads,
                                                  .sequences = options.sequences,
                                                  .threads = options.host_threads,
                                                  .query_dtype = options.query_dtype},
                            options_.hooks);
    host_share_ = options.host_share.value_or(0.0);
    if (!options.host_share) measure_host();
  }
}

void ChunkedCache::set_scales(const KvScales& scales) {
  KvCache::set_scales(scales);
  if (host_attention_) host_attention_->set_scales(scales);
}

// Waits for write-outs that are still running.
ChunkedCache::~ChunkedCache() {
  try {
    writes_->synchronize();
  } catch (
      const std::exception&) {  // already reported to the user of the cache, or no longer relevant
  }
}

// Measures with a working set larger than any processor cache.
void ChunkedCache::measure_host() {
  constexpr std::size_t kMemory = std::size_t{512} << 20;
  const auto enough =
      static_cast<std::int64_t>(std::max(kMemory / shape_.kv_bytes(), std::size_t{1}));
  std::vector<const unsigned char*> parts;
  for (BlockId block = 0; block < std::min(enough, host_.blocks()); ++block) {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      parts.push_back(static_cast<const unsigned char*>(host_.part(block, layer)));
    }
  }
  if (parts.empty() || slot_memory_.bytes() < part_bytes_) return;
  const HostBlocks::Pause pause(host_);
  host_speeds_ = host_attention_->measure(parts, slot_memory_.data());
  host_share_ = host_speeds_->share();
}

std::size_t ChunkedCache::device_bytes(const BlockShape& shape, const ChunkedOptions& options) {
  ChunkedOptions no_blocks = options;
  no_blocks.blocks = 0;
  return static_cast<std::size_t>(options.device_slots) * shape.kv_bytes() +
         StepTables::bytes(table_limits(shape, no_blocks)) +
         PartialAttention::bytes(sum_limits(shape, options)) +
         (options.quest ? Quest::bytes(quest_limits(shape, no_blocks)) + GatheredQuest::bytes(shape)
                        : 0) +
         (stages(options) ? StagedLayer::bytes(shape, max_blocks(shape, options)) : 0) +
         static_cast<std::size_t>(options.ring_slots) * shape.layer_bytes();
}

std::size_t ChunkedCache::device_bytes_per_block(const BlockShape& shape, bool quest) {
  const std::size_t chosen = quest ? Quest::block_bytes(shape) + sizeof(std::int64_t) : 0;
  return shape.token_bytes() + sizeof(std::int32_t) + chosen;
}

StepPlan ChunkedCache::begin_step(const KvStep& step, Stream& stream) {
  number_ = step.number;
  open_blocks(step);
  keep_blocks(step, stream);
  reads_.plan(step, slots_, host_attention_ ? host_share_ : 0);
  last_capturable_ = std::exchange(capturable_, step.may_capture);
  const bool other_reads = choose_graph_key();
  await_writes(stream);
  if (other_reads) plan_loads();
  if (other_reads && host_attention_) plan_host_reads();
  tables_.stage(reads_, slots_, stream);
  count(step);
  return {.capturable = capturable_, .graph_key = graph_key_};
}

// Counts the bytes that this step moves, and those that the host's cores read in place.
void ChunkedCache::count(const KvStep& step) {
  const auto layers = static_cast<std::uint64_t>(shape_.layers);
  traffic_.to_device += layers * reads_.through_ring().size() * part_bytes_;
  traffic_.by_host += layers * reads_.by_host().size() * part_bytes_;
  for (const StepSequence& sequence : step.sequences) {
    if (quest_ && sequence.rows == 1) traffic_.to_device += layers * max_gathered(sequence);
  }
  if (writes_out()) traffic_.to_host += layers * filled_.size() * part_bytes_;
}

void ChunkedCache::plan_host_reads() {
  std::vector<kernels::HostAttentionBlock> blocks;
  host_reads_recent_ = false;
  for (const StepReads::HostRead& read : reads_.by_host()) {
    host_reads_recent_ |= block_written_[static_cast<std::size_t>(read.block)] > settled_;
    blocks.push_back({read.row, static_cast<const unsigned char*>(host_.part(read.block, 0))});
  }
  // Rows after the last reader do not count, so that their number does not change the graph key.
  const std::int64_t rows = reads_.by_host().empty() ? 0 : reads_.by_host().back().row + 1;
  host_attention_->plan(std::move(blocks), rows);
}

// An upper bound of the bytes gathered from host memory in one layer: only the device knows which
// pages are selected.
std::uint64_t ChunkedCache::max_gathered(const StepSequence& sequence) const {
  std::int64_t tokens = 0;
  for (std::int64_t number = 0; number * shape_.block_size < sequence.length(); ++number) {
    if (slots_.slot_of(sequence.blocks[number]) == DeviceSlots::kNone) tokens += shape_.block_size;
  }
  return static_cast<std::uint64_t>(std::min(tokens, options_.quest_budget)) * part_bytes_ /
         static_cast<std::uint64_t>(shape_.block_size);
}

// Assigns a slot to every block that receives rows in this step, and records which of them become
// full.
void ChunkedCache::open_blocks(const KvStep& step) {
  filled_.clear();
  reuses_slots_ = false;
  for (const StepSequence& sequence : step.sequences) {
    BlockId& open = open_[sequence.slot];
    NVLLM_CHECK(sequence.first % shape_.block_size == 0 ||
                    open == sequence.blocks[sequence.first / shape_.block_size],
                "slot ", sequence.slot, ": the block of position ", sequence.first, " is not open");
    for (std::int64_t number = sequence.first / shape_.block_size;
         number * shape_.block_size < sequence.length(); ++number) {
      const BlockId block = sequence.blocks[number];
      if (block != open) {
        const DeviceSlot slot = slots_.open(block);
        reuses_slots_ |= slot_written_[static_cast<std::size_t>(slot)] > settled_;
      }
      const bool full = (number + 1) * shape_.block_size <= sequence.length();
      if (full) filled_.push_back(block);
      if (full && quest_ && writes_out()) tables_.set_address(block, host_.part(block, 0));
      open = full ? kNoBlock : block;
    }
  }
}

// Holds the resident blocks of each sequence in slots until it ends. If another sequence has
// computed a shared prefix, its blocks may have to be copied back to the device.
void ChunkedCache::keep_blocks(const KvStep& step, Stream& stream) {
  for (const StepSequence& sequence : step.sequences) {
    std::vector<BlockId>& kept = kept_[sequence.slot];
    const std::int64_t there = divide_up(sequence.length(), shape_.block_size);
    const auto end = static_cast<std::size_t>(std::min(sequence.resident, there));
    for (std::size_t number = kept.size(); number < end; ++number) {
      const BlockId block = sequence.blocks[number];
      kept.push_back(block);
      if (!slots_.hold(block)) bring_back(block, stream);
    }
  }
}

// Copies all layers of a block at once, after the stream's reads of the slot.
void ChunkedCache::bring_back(BlockId block, Stream& stream) {
  if (part_bytes_ == 0) return;
  NVLLM_CHECK(!options_.all_stay, "block ", block, " has lost its slot");
  const auto slot = static_cast<std::size_t>(slots_.slot_of(block));
  const std::uint64_t written =
      std::max(block_written_[static_cast<std::size_t>(block)], slot_written_[slot]);
  if (written > settled_) {
    options_.hooks.wait(OffloadWait::load_of_write, stream, *written_.back());
  }
  options_.hooks.delay(Transfer::to_device, stream);
  backend_.copy(static_cast<unsigned char*>(slot_memory_.data()) + slot * shape_.kv_bytes(),
                host_.part(block, 0), shape_.kv_bytes(), stream);
  traffic_.to_device += shape_.kv_bytes();
}

// Sets the graph key. Returns whether the step reads other blocks from the host than the previous
// step. If so, its pass needs a new graph, unless it reads no block from the host: such passes
// share one key. A pass with loads also gets a new key after a step that was not capturable: its
// first run is not a graph, and brings the ring into the state from which graphs start.
bool ChunkedCache::choose_graph_key() {
  const bool same = capturable_ && last_capturable_ && reads_.same_as_last();
  if (capturable_ && reads_.none()) {
    graph_key_ = kResidentKey;
  } else if (!same) {
    graph_key_ = ++last_graph_key_;
  }
  return !same;
}

// Makes the stream wait for write-outs where loads do not wait themselves: a step that gathers
// pages waits for all of them, and so does a graph.
void ChunkedCache::await_writes(Stream& stream) {
  const bool gathers = reads_.any(Kind::quest);
  if (capturable_) {
    if (reuses_slots_ || gathers || !reads_.none()) settle(stream);
  } else if (gathers && last_written_ != settled_) {
    // settled_ does not change, because loads through the ring run ahead of the stream and wait for
    // write-outs themselves.
    options_.hooks.wait(OffloadWait::load_of_write, stream, *written_.back());
  }
}

// Makes the stream wait for all write-outs so far.
void ChunkedCache::settle(Stream& stream) {
  reuses_slots_ = false;
  if (last_written_ == settled_) return;
  options_.hooks.wait(OffloadWait::load_of_write, stream, *written_.back());
  settled_ = last_written_;
}

void ChunkedCache::plan_loads() {
  loads_.clear();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    const Event* written = written_[static_cast<std::size_t>(layer)].get();
    for (const Read& read : reads_.through_ring()) {
      const bool recent = block_written_[static_cast<std::size_t>(read.block)] > settled_;
      loads_.push_back({host_.part(read.block, layer), recent ? written : nullptr});
    }
  }
}

// From now on full blocks count as written to host memory, for whoever waits for the write-out.
void ChunkedCache::end_step(Stream& stream) {
  if (capturable_) write_out_blocks(stream);
  for (const BlockId block : filled_) {
    if (writes_out()) {
      slot_written_[static_cast<std::size_t>(slots_.slot_of(block))] = number_;
      block_written_[static_cast<std::size_t>(block)] = number_;
      last_written_ = number_;
    }
    slots_.filled(block);
    slots_.release(block);
  }
}

// Releases the last block first, so that prefixes stay on the device longest.
void ChunkedCache::end_sequence(std::uint32_t slot) {
  const BlockId open = std::exchange(open_[slot], kNoBlock);
  if (open != kNoBlock) slots_.release(open);
  std::vector<BlockId>& kept = kept_[slot];
  for (; !kept.empty(); kept.pop_back()) slots_.release(kept.back());
}

}  // namespace nvllm::kvcache
