#include "kvcache/chunked_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {
namespace {

constexpr BlockId kNoBlock = -1;

std::size_t part_bytes_of(const BlockShape& shape) {
  return static_cast<std::size_t>(2 * shape.layer_elements()) * size_of(shape.dtype);
}

PartialSums::Limits sum_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.rows = options.rows, .heads = options.heads, .head_dim = shape.head_dim};
}

QuestLimits quest_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.shape = shape,
          .blocks = options.blocks,
          .sequences = GatheredQuest::kSequences,
          .tokens = options.tokens,
          .budget = options.quest_budget};
}

// Of the longest sequence.
std::int64_t staged_blocks(const BlockShape& shape, const ChunkedOptions& options) {
  return (options.tokens + shape.block_size - 1) / shape.block_size;
}

StepReads::Rules read_rules(const BlockShape& shape, const ChunkedOptions& options) {
  return {.blocks = options.blocks,
          .block_size = shape.block_size,
          .heads = part_bytes_of(shape) > 0,
          .quest = options.quest,
          .prompts = options.prompts != nullptr,
          .least_tokens = options.least_tokens,
          .staged_blocks = staged_blocks(shape, options)};
}

// What the device is told of a step, in words of 32 bits: where blocks are, then the tokens of a whole block,
// the tokens of each sequence in write slots, {0, rows} of each, and the table of write slots.
struct StepWords {
  StepWords(std::int64_t blocks, std::int64_t sequences)
      : full(blocks), lengths(full + 1), rows(lengths + sequences), table(rows + 2 * sequences) {}
  std::int64_t full, lengths, rows, table;
};

std::int64_t words_of(const ChunkedOptions& options) {
  return StepWords(options.blocks, options.sequences).table +
         options.sequences * options.write_slots;
}

}  // namespace

ChunkedCache::ChunkedCache(Backend& backend, const BlockShape& shape, const ChunkedOptions& options)
    : backend_(backend),
      shape_(shape),
      options_(options),
      part_bytes_(part_bytes_of(shape)),
      host_(backend, shape, options.blocks),
      slots_(options.write_slots, options.blocks),
      slot_memory_(backend.allocate(MemoryKind::device,
                                    static_cast<std::size_t>(slots_.size()) * shape.kv_bytes(),
                                    "kv write slots")),
      token_memory_(backend.allocate(MemoryKind::device,
                                     static_cast<std::size_t>(options.blocks) * shape.token_bytes(),
                                     "kv tokens")),
      step_memory_(backend.allocate(
          MemoryKind::device, static_cast<std::size_t>(words_of(options)) * sizeof(std::int32_t),
          "step input")),
      sums_(backend, sum_limits(shape, options)),
      tokens_(token_memory_.data(), DType::i32, {options.blocks, shape.block_size}),
      writes_(backend.create_stream()),
      stored_(backend.create_event()),
      ring_(backend, options.ring_slots, part_bytes_, options_.hooks),
      open_(static_cast<std::size_t>(options.sequences), kNoBlock),
      block_written_(static_cast<std::size_t>(options.blocks)),
      slot_written_(static_cast<std::size_t>(slots_.size())),
      reads_(read_rules(shape, options)) {
  homes_ = ints(0, {options.blocks});
  if (options.quest) {
    quest_.emplace(backend, quest_limits(shape, options));
    gathered_.emplace(backend, *quest_, shape);
    addresses_.resize(static_cast<std::size_t>(options.blocks));
    address_memory_ =
        backend.allocate(MemoryKind::device, addresses_.size() * sizeof(std::int64_t), "quest");
  }
  if (options.prompts != nullptr) {
    staging_.emplace(backend, shape, staged_blocks(shape, options));
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    written_.push_back(backend.create_event());
  }
  NVLLM_CHECK(!options.quest || options.host_share == 0.0, "host attention beside Quest");
  if (options.host_share != 0.0 && part_bytes_ > 0 && options.heads > 0) {
    host_attention_.emplace(backend,
                            HostAttention::Limits{.shape = shape,
                                                  .heads = options.heads,
                                                  .sequences = options.sequences,
                                                  .threads = options.host_threads},
                            options_.hooks);
    host_share_ = options.host_share.value_or(0.0);
    if (!options.host_share) measure_host();
  }
  // One more than the steps that can be under way, so that none has to be waited for.
  for (int i = 0; i < options.steps_ahead + 2; ++i) {
    staged_.push_back(
        {backend.allocate(MemoryKind::pinned, step_memory_.bytes(), "step input"),
         backend.create_event(),
         backend.allocate(MemoryKind::pinned, address_memory_.bytes(), "step input")});
  }
}

// Write-outs may still run: nobody else waits for them.
ChunkedCache::~ChunkedCache() {
  try {
    writes_->synchronize();
  } catch (
      const std::exception&) {  // whoever uses the cache has been told, or nobody wants to know
  }
}

// With as much of the host's memory as no cache holds.
void ChunkedCache::measure_host() {
  constexpr std::size_t kMemory = std::size_t{512} << 20;
  const auto most =
      static_cast<std::int64_t>(std::max(kMemory / shape_.kv_bytes(), std::size_t{1}));
  std::vector<const unsigned char*> parts;
  for (BlockId block = 0; block < std::min(most, host_.blocks()); ++block) {
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
  return static_cast<std::size_t>(options.write_slots) * shape.kv_bytes() +
         static_cast<std::size_t>(words_of(no_blocks)) * sizeof(std::int32_t) +
         PartialSums::bytes(sum_limits(shape, options)) +
         (options.quest ? Quest::bytes(quest_limits(shape, no_blocks)) + GatheredQuest::bytes(shape)
                        : 0) +
         (options.prompts ? StagedLayer::bytes(shape, staged_blocks(shape, options)) : 0) +
         static_cast<std::size_t>(options.ring_slots) * part_bytes_of(shape);
}

std::size_t ChunkedCache::device_bytes_per_block(const BlockShape& shape, bool quest) {
  const std::size_t chosen = quest ? Quest::block_bytes(shape) + sizeof(std::int64_t) : 0;
  return shape.token_bytes() + sizeof(std::int32_t) + chosen;
}

TensorView ChunkedCache::ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const {
  return TensorView(static_cast<std::int32_t*>(step_memory_.data()) + first, DType::i32, shape);
}

StepPlan ChunkedCache::begin_step(const KvStep& step, Stream& stream) {
  number_ = step.number;
  open_blocks(step);
  reads_.plan(step, slots_, host_attention_ ? host_share_ : 0);
  repeated_ = std::exchange(repeats_, step.may_repeat && filled_.empty());
  const bool new_work = name_work();
  // Who reads the host's memory out of order waits for all that was written there.
  if (repeats_) {
    settle(stream);
  } else if (reads_.any(Kind::quest) && last_written_ != settled_) {
    // Not settled: loads through the ring run ahead of the stream, so they wait for themselves.
    options_.hooks.wait(OffloadWait::load_of_write, stream, *written_.back());
  }
  if (new_work) plan_loads();
  if (new_work && host_attention_) plan_host_reads();
  stage(stream);
  const auto layers = static_cast<std::uint64_t>(shape_.layers);
  traffic_.to_device += layers * reads_.through_ring().size() * part_bytes_;
  traffic_.by_host += layers * reads_.by_host().size() * part_bytes_;
  for (const StepSequence& sequence : step.sequences) {
    if (quest_ && sequence.rows == 1) traffic_.to_device += layers * most_gathered(sequence);
  }
  traffic_.to_host += layers * filled_.size() * part_bytes_;
  return {.repeats = repeats_, .work = work_};
}

void ChunkedCache::plan_host_reads() {
  std::vector<kernels::HostAttentionBlock> blocks;
  host_reads_recent_ = false;
  for (const StepReads::HostRead& read : reads_.by_host()) {
    host_reads_recent_ |= block_written_[static_cast<std::size_t>(read.block)] > settled_;
    blocks.push_back({read.row, static_cast<const unsigned char*>(host_.part(read.block, 0))});
  }
  // Rows behind the last reader do not count: another number of them is no other work.
  const std::int64_t rows = reads_.by_host().empty() ? 0 : reads_.by_host().back().row + 1;
  host_attention_->plan(std::move(blocks), rows);
}

// Of pages that are gathered from the host's memory, in one layer: which ones those are only the device knows.
std::uint64_t ChunkedCache::most_gathered(const StepSequence& sequence) const {
  std::int64_t tokens = 0;
  for (std::int64_t number = 0; number * shape_.block_size < sequence.length(); ++number) {
    if (slots_.home(sequence.blocks[number]) == WriteSlots::kNone) tokens += shape_.block_size;
  }
  return static_cast<std::uint64_t>(std::min(tokens, options_.quest_budget)) * part_bytes_ /
         static_cast<std::uint64_t>(shape_.block_size);
}

// Every block that gets rows in this step is in a write slot; which of them get full.
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
      if (slots_.home(block) == WriteSlots::kNone) {
        const WriteSlot slot = slots_.take(block);
        reuses_slots_ |= slot_written_[static_cast<std::size_t>(slot)] > settled_;
        homes_changed_ = true;
      }
      const bool full = (number + 1) * shape_.block_size <= sequence.length();
      if (full) filled_.push_back(block);
      if (full && quest_ && part_bytes_ > 0) {
        addresses_[static_cast<std::size_t>(block)] =
            reinterpret_cast<std::int64_t>(host_.part(block, 0));
      }
      open = full ? kNoBlock : block;
    }
  }
}

// A pass that repeats is another one than before if it reads other blocks. After one that does not repeat
// it is new, too: its first run is no graph, and puts the ring in order.
bool ChunkedCache::name_work() {
  const bool same = repeats_ && repeated_ && reads_.as_before();
  if (!same) ++work_;
  return !same;
}

// The stream waits for all that was written out.
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

void ChunkedCache::stage(Stream& stream) {
  Staged& staged = staged_[next_staged_];
  next_staged_ = (next_staged_ + 1) % staged_.size();
  staged.copied
      ->synchronize();  // of the step that used it last, which no longer waits for anything
  auto* const words = static_cast<std::int32_t*>(staged.memory.data());
  const StepWords at(options_.blocks, options_.sequences);
  words[at.full] = static_cast<std::int32_t>(shape_.block_size);
  std::fill_n(words + at.lengths, options_.sequences, 0);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    const auto row = static_cast<std::int64_t>(s);
    words[at.lengths + row] = static_cast<std::int32_t>(part.resident_tokens);
    words[at.rows + 2 * row] = 0;
    words[at.rows + 2 * row + 1] = static_cast<std::int32_t>(part.rows);
    std::copy(part.residents.begin(), part.residents.end(),
              words + at.table + row * reads_.residents());
  }
  if (std::exchange(homes_changed_, false)) {
    std::copy(slots_.homes().begin(), slots_.homes().end(), words);
    backend_.copy(homes_.data, words, homes_.bytes(), stream);
    if (quest_) {
      std::copy(addresses_.begin(), addresses_.end(),
                static_cast<std::int64_t*>(staged.addresses.data()));
      backend_.copy(address_memory_.data(), staged.addresses.data(), address_memory_.bytes(),
                    stream);
    }
  }
  const std::int64_t end =
      at.table + static_cast<std::int64_t>(reads_.parts().size()) * reads_.residents();
  backend_.copy(ints(at.full, {1}).data, words + at.full,
                static_cast<std::size_t>(end - at.full) * sizeof(std::int32_t), stream);
  staged.copied->record(stream);
}

void ChunkedCache::begin_pass(Stream& stream) {
  ring_.begin(loads_, repeats_, stream);
}

kernels::KvView ChunkedCache::store_view(std::int64_t layer, Stream& stream) {
  if (reuses_slots_) {
    options_.hooks.wait(OffloadWait::store_of_write, stream,
                        *written_[static_cast<std::size_t>(layer)]);
  }
  return slot_view(layer);
}

// All write slots.
kernels::KvView ChunkedCache::slot_view(std::int64_t layer) const {
  auto* const keys = static_cast<unsigned char*>(slot_memory_.data()) +
                     static_cast<std::size_t>(layer) * part_bytes_;
  const auto tensor = [&](unsigned char* data) {
    TensorView view(data, shape_.dtype,
                    {slots_.size(), shape_.block_size, shape_.kv_heads, shape_.head_dim});
    view.stride[0] = shape_.layers * 2 * shape_.layer_elements();
    return view;
  };
  return {.keys = tensor(keys), .values = tensor(keys + part_bytes_ / 2), .block_table = {}};
}

// One block.
kernels::KvView ChunkedCache::ring_view(void* part) const {
  auto* const keys = static_cast<unsigned char*>(part);
  const auto tensor = [&](unsigned char* data) {
    return TensorView(data, shape_.dtype, {1, shape_.block_size, shape_.kv_heads, shape_.head_dim});
  };
  return {.keys = tensor(keys), .values = tensor(keys + part_bytes_ / 2), .block_table = {}};
}

void ChunkedCache::write_out(std::int64_t layer, Stream& stream) {
  if (filled_.empty() || part_bytes_ == 0) return;
  stored_->record(stream);
  options_.hooks.wait(OffloadWait::write_of_store, *writes_, *stored_);
  for (const BlockId block : filled_) {
    const auto place = static_cast<std::size_t>(slots_.home(block) * shape_.layers + layer);
    options_.hooks.delay(Transfer::to_host, *writes_);
    backend_.copy(host_.part(block, layer),
                  static_cast<unsigned char*>(slot_memory_.data()) + place * part_bytes_,
                  part_bytes_, *writes_);
  }
  written_[static_cast<std::size_t>(layer)]->record(*writes_);
}

void ChunkedCache::attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  // Before this layer's write-outs, which the cores' blocks have nothing to do with.
  if (by_host()) {
    host_attention_->begin(
        layer, args, host_reads_recent_ ? written_[static_cast<std::size_t>(layer)].get() : nullptr,
        stream);
  }
  write_out(layer, stream);
  if (args.q.elements() == 0) return;
  if (!quest_) return attend_all(layer, args, stream);
  kernels::Attention stored = args;
  stored.kv = slot_view(layer);
  stored.kv.block_table = args.kv.block_table;
  quest_->stored(layer, stored, stream, homes_);
  attend_quest(layer, args, stream);
}

GatheredQuest::Blocks ChunkedCache::quest_blocks(std::int64_t layer) const {
  return {.near = slot_view(layer),
          .homes = homes_,
          .addresses = TensorView(address_memory_.data(), DType::i64, {options_.blocks}),
          .offset = layer * static_cast<std::int64_t>(part_bytes_)};
}

// Sequences of one row by what Quest chooses, then the others.
void ChunkedCache::attend_quest(std::int64_t layer, const kernels::Attention& args,
                                Stream& stream) {
  const auto chosen = std::count_if(reads_.parts().begin(), reads_.parts().end(),
                                    [](const Part& part) { return part.kind == Kind::quest; });
  if (chosen == static_cast<std::ptrdiff_t>(reads_.parts().size())) {  // and padding
    return gathered_->attend(layer, args, args.query_start, quest_blocks(layer), stream);
  }
  attend_all(layer, args, stream);
  const StepWords at(options_.blocks, options_.sequences);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    if (reads_.parts()[s].kind != Kind::quest) continue;
    const TensorView starts = ints(at.rows + 2 * static_cast<std::int64_t>(s), {2});
    gathered_->attend(layer, rows_of(args, s), starts, quest_blocks(layer), stream);
  }
}

// The arguments of one sequence, but for what says how many rows it has.
kernels::Attention ChunkedCache::rows_of(const kernels::Attention& args,
                                         std::size_t sequence) const {
  const Part& part = reads_.parts()[sequence];
  const auto number = static_cast<std::int64_t>(sequence);
  kernels::Attention own = args;
  own.q = args.q.rows(part.begin, part.rows);
  own.out = args.out.rows(part.begin, part.rows);
  if (args.lse.data != nullptr) own.lse = args.lse.rows(part.begin, part.rows);
  own.kv_length = args.kv_length.rows(number, 1);
  own.kv.block_table = args.kv.block_table.rows(number, 1);
  return own;
}

// All rows but those that Quest chooses for, whose results are to be written over.
void ChunkedCache::attend_all(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  kernels::Attention residents = args;
  residents.kv = slot_view(layer);
  const std::int64_t sequences = args.kv_length.shape[0];
  const StepWords at(options_.blocks, options_.sequences);
  residents.kv.block_table = ints(at.table, {sequences, reads_.residents()});
  residents.kv_length = ints(at.lengths, {sequences});
  residents.max_kv_length = reads_.residents() * shape_.block_size;
  const bool in_parts = !reads_.through_ring().empty() || by_host();
  if (in_parts) {
    sums_.begin(residents, stream);
  } else {
    kernels::attention(residents, stream);
  }
  std::size_t taken = 0;
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (part.kind != Kind::prompt) continue;
    take_reads(layer, taken, part.reads_end, args, stream);
    taken = part.reads_end;
    attend_prompt(layer, part, rows_of(args, s), stream);
  }
  take_reads(layer, taken, reads_.through_ring().size(), args, stream);
  if (in_parts) finish_sums(args, stream);
}

// What comes through the ring goes where it is wanted.
void ChunkedCache::take_reads(std::int64_t layer, std::size_t first, std::size_t end,
                              const kernels::Attention& args, Stream& stream) {
  const std::vector<Read>& reads = reads_.through_ring();
  for (std::size_t i = first; i < end; ++i) {
    const Read& read = reads[i];
    const std::size_t load = static_cast<std::size_t>(layer) * reads.size() + i;
    void* const part = ring_.take(load, stream);
    if (read.staged != StepReads::kNotStaged) staging_->put(read.staged, part, stream);
    for (const std::size_t sequence : read.sequences) {
      add_part(ring_view(part), sequence, args, stream);
    }
    ring_.done(load, stream);
  }
}

// Of a prompt whose other blocks are staged.
void ChunkedCache::attend_prompt(std::int64_t layer, const Part& part,
                                 const kernels::Attention& args, Stream& stream) {
  for (const Part::Staged& staged : part.staged) {
    const auto place = static_cast<std::size_t>(staged.slot * shape_.layers + layer);
    staging_->put(staged.number,
                  static_cast<unsigned char*>(slot_memory_.data()) + place * part_bytes_, stream);
  }
  kernels::Attention prompt = args;
  prompt.kv = staging_->view();
  options_.prompts->attend(prompt_attention(prompt, part.first), stream);
}

// Prompts that were chosen for have their results.
void ChunkedCache::finish_sums(const kernels::Attention& args, Stream& stream) {
  const kernels::MergeAttention::Part last =
      by_host() ? host_attention_->end(stream) : kernels::MergeAttention::Part{};
  if (!reads_.any(Kind::prompt)) return sums_.finish(args, 0, stream, last);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (part.kind == Kind::everything) sums_.finish(rows_of(args, s), part.begin, stream, last);
  }
}

// The attention of a sequence's rows to a whole block of earlier tokens.
void ChunkedCache::add_part(const kernels::KvView& kv, std::size_t sequence,
                            const kernels::Attention& args, Stream& stream) {
  const Part& own = reads_.parts()[sequence];
  const StepWords at(options_.blocks, options_.sequences);
  const TensorView full = ints(at.full, {1});
  kernels::Attention part = args;
  part.q = args.q.rows(own.begin, own.rows);
  part.kv = kv;
  part.query_start = ints(at.rows + 2 * static_cast<std::int64_t>(sequence), {2});
  part.kv_length = part.visible = full;
  part.max_query_rows = own.rows;
  part.max_kv_length = shape_.block_size;
  sums_.add(part, own.begin, stream);
}

void ChunkedCache::end_pass(Stream& stream) {
  ring_.end(stream);
}

// What is full is in the host's memory from now on, for whoever waits for it.
void ChunkedCache::end_step(Stream&) {
  for (const BlockId block : filled_) {
    slot_written_[static_cast<std::size_t>(slots_.home(block))] = number_;
    block_written_[static_cast<std::size_t>(block)] = number_;
    slots_.release(block);
    homes_changed_ = true;
  }
  if (!filled_.empty()) last_written_ = number_;
}

void ChunkedCache::end_sequence(std::uint32_t slot) {
  const BlockId open = std::exchange(open_[slot], kNoBlock);
  if (open == kNoBlock) return;
  slots_.release(open);
  homes_changed_ = true;
}

}  // namespace nvllm::kvcache
