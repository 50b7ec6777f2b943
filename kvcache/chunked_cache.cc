#include "kvcache/chunked_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {
namespace {

constexpr BlockId kNoBlock = -1;
constexpr std::int32_t kNoRead = -1;

std::size_t part_bytes_of(const BlockShape& shape) {
  return static_cast<std::size_t>(2 * shape.layer_elements()) * size_of(shape.dtype);
}

PartialSums::Limits sum_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.rows = options.rows, .heads = options.heads, .head_dim = shape.head_dim};
}

GatheredQuest::Limits quest_limits(const BlockShape& shape, const ChunkedOptions& options) {
  return {.shape = shape, .blocks = options.blocks, .tokens = options.tokens};
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
      read_of_(static_cast<std::size_t>(options.blocks), kNoRead) {
  homes_ = ints(0, {options.blocks});
  if (options.quest) {
    quest_.emplace(backend, quest_limits(shape, options));
    addresses_.resize(static_cast<std::size_t>(options.blocks));
    address_memory_ =
        backend.allocate(MemoryKind::device, addresses_.size() * sizeof(std::int64_t), "quest");
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
  host_speeds_ = host_attention_->measure(parts, slot_memory_.data());
  host_share_ = host_speeds_->share();
}

std::size_t ChunkedCache::device_bytes(const BlockShape& shape, const ChunkedOptions& options) {
  ChunkedOptions no_blocks = options;
  no_blocks.blocks = 0;
  return static_cast<std::size_t>(options.write_slots) * shape.kv_bytes() +
         static_cast<std::size_t>(words_of(no_blocks)) * sizeof(std::int32_t) +
         PartialSums::bytes(sum_limits(shape, options)) +
         (options.quest ? GatheredQuest::bytes(quest_limits(shape, no_blocks)) : 0) +
         static_cast<std::size_t>(options.ring_slots) * part_bytes_of(shape);
}

std::size_t ChunkedCache::device_bytes_per_block(const BlockShape& shape, bool quest) {
  const std::size_t chosen = quest ? GatheredQuest::block_bytes(shape) + sizeof(std::int64_t) : 0;
  return shape.token_bytes() + sizeof(std::int32_t) + chosen;
}

TensorView ChunkedCache::ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const {
  return TensorView(static_cast<std::int32_t*>(step_memory_.data()) + first, DType::i32, shape);
}

StepPlan ChunkedCache::begin_step(const KvStep& step, Stream& stream) {
  number_ = step.number;
  open_blocks(step);
  plan_reads(step);
  if (host_attention_) give_to_host();
  repeated_ = std::exchange(repeats_, step.may_repeat && filled_.empty());
  const bool new_work = name_work();
  // Who reads the host's memory out of order waits for all that was written there.
  const bool gathers =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.chosen; });
  if (repeats_) {
    settle(stream);
  } else if (gathers && last_written_ != settled_) {
    // Not settled: loads through the ring run ahead of the stream, so they wait for themselves.
    options_.hooks.wait(OffloadWait::load_of_write, stream, *written_.back());
  }
  if (new_work) plan_loads();
  if (new_work && host_attention_) plan_host_reads();
  stage(stream);
  const auto layers = static_cast<std::uint64_t>(shape_.layers);
  traffic_.to_device += layers * reads_.size() * part_bytes_;
  traffic_.by_host += layers * host_reads_.size() * part_bytes_;
  for (const StepSequence& sequence : step.sequences) {
    if (quest_ && sequence.rows == 1) traffic_.to_device += layers * most_gathered(sequence);
  }
  traffic_.to_host += layers * filled_.size() * part_bytes_;
  return {.repeats = repeats_, .work = work_};
}

// Of the reads of the step's first sequences, as far as they have one row each, the host's share.
void ChunkedCache::give_to_host() {
  std::swap(host_reads_, last_host_reads_);
  host_reads_.clear();
  const auto several =
      std::find_if(parts_.begin(), parts_.end(), [](const Part& part) { return part.rows != 1; });
  const auto rows = static_cast<std::size_t>(several - parts_.begin());
  readers_.clear();
  for (const Read& read : reads_) {
    const bool can = read.sequences.back() < rows;
    readers_.push_back(can ? static_cast<std::int32_t>(read.sequences.size()) : 0);
  }
  choose_for_host(readers_, host_share_, taken_);
  std::size_t left = 0;
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    Read& read = reads_[i];
    std::int32_t& place = read_of_[static_cast<std::size_t>(read.block)];
    if (!taken_[i]) {
      place = static_cast<std::int32_t>(left);
      if (left != i) std::swap(reads_[left], read);
      ++left;
      continue;
    }
    place = kNoRead;
    for (const std::size_t sequence : read.sequences) {
      host_reads_.push_back({static_cast<std::int32_t>(sequence), read.block});
    }
  }
  reads_.resize(left);
  std::stable_sort(host_reads_.begin(), host_reads_.end(),
                   [](const HostRead& a, const HostRead& b) { return a.row < b.row; });
}

void ChunkedCache::plan_host_reads() {
  std::vector<kernels::HostAttentionBlock> blocks;
  host_reads_recent_ = false;
  for (const HostRead& read : host_reads_) {
    host_reads_recent_ |= block_written_[static_cast<std::size_t>(read.block)] > settled_;
    blocks.push_back({read.row, static_cast<const unsigned char*>(host_.part(read.block, 0))});
  }
  // Rows behind the last reader do not count: another number of them is no other work.
  const std::int64_t rows = host_reads_.empty() ? 0 : host_reads_.back().row + 1;
  host_attention_->plan(std::move(blocks), rows);
}

// Of pages that are gathered from the host's memory, in one layer: which ones those are only the device knows.
std::uint64_t ChunkedCache::most_gathered(const StepSequence& sequence) const {
  std::int64_t tokens = 0;
  for (std::int64_t number = 0; number * shape_.block_size < sequence.length(); ++number) {
    if (slots_.home(sequence.blocks[number]) == WriteSlots::kNone) tokens += shape_.block_size;
  }
  return static_cast<std::uint64_t>(GatheredQuest::most_gathered(tokens)) * part_bytes_ /
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

// Where every sequence finds its blocks: in write slots, its own or another one's of this step, or in the
// ring.
void ChunkedCache::plan_reads(const KvStep& step) {
  for (const Read& read : reads_) read_of_[static_cast<std::size_t>(read.block)] = kNoRead;
  std::swap(reads_, last_reads_);
  reads_.clear();
  last_width_ = std::exchange(table_width_, 1);
  parts_.resize(step.sequences.size());
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    Part& part = parts_[s];
    part.begin = begin;
    part.rows = sequence.rows;
    begin += sequence.rows;
    part.residents.clear();
    part.chosen = quest_ && sequence.rows == 1;
    part.resident_tokens = part.chosen ? 0 : sequence.length();
    if (part.chosen) continue;
    for (std::int64_t number = 0; number * shape_.block_size < sequence.length(); ++number) {
      const BlockId block = sequence.blocks[number];
      const WriteSlot home = slots_.home(block);
      if (home != WriteSlots::kNone) {
        part.residents.push_back(home);
      } else {
        read(block, s);
        part.resident_tokens -= shape_.block_size;
      }
    }
    table_width_ = std::max(table_width_, static_cast<std::int64_t>(part.residents.size()));
  }
  if (part_bytes_ == 0) reads_.clear();  // a rank without heads
}

void ChunkedCache::read(BlockId block, std::size_t sequence) {
  std::int32_t& place = read_of_[static_cast<std::size_t>(block)];
  if (place == kNoRead) {
    place = static_cast<std::int32_t>(reads_.size());
    reads_.push_back({block, {}});
  }
  reads_[static_cast<std::size_t>(place)].sequences.push_back(sequence);
}

// A pass that repeats is another one than before if it reads other blocks. After one that does not repeat
// it is new, too: its first run is no graph, and puts the ring in order.
bool ChunkedCache::name_work() {
  const bool same = repeats_ && repeated_ && table_width_ == last_width_ && reads_ == last_reads_ &&
                    host_reads_ == last_host_reads_;
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
    for (const Read& read : reads_) {
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
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const Part& part = parts_[s];
    const auto row = static_cast<std::int64_t>(s);
    words[at.lengths + row] = static_cast<std::int32_t>(part.resident_tokens);
    words[at.rows + 2 * row] = 0;
    words[at.rows + 2 * row + 1] = static_cast<std::int32_t>(part.rows);
    std::copy(part.residents.begin(), part.residents.end(), words + at.table + row * table_width_);
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
  const std::int64_t end = at.table + static_cast<std::int64_t>(parts_.size()) * table_width_;
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
  if (host_attention_ && host_attention_->planned()) {
    host_attention_->begin(
        layer, args, host_reads_recent_ ? written_[static_cast<std::size_t>(layer)].get() : nullptr,
        stream);
  }
  write_out(layer, stream);
  if (args.q.elements() == 0) return;
  if (!quest_) return attend_all(layer, args, stream);
  quest_->stored(layer, args, quest_blocks(layer), stream);
  attend_chosen(layer, args, stream);
}

GatheredQuest::Blocks ChunkedCache::quest_blocks(std::int64_t layer) const {
  return {.near = slot_view(layer),
          .homes = homes_,
          .addresses = TensorView(address_memory_.data(), DType::i64, {options_.blocks}),
          .offset = layer * static_cast<std::int64_t>(part_bytes_)};
}

// Sequences of one row by what Quest chooses, others by everything.
void ChunkedCache::attend_chosen(std::int64_t layer, const kernels::Attention& args,
                                 Stream& stream) {
  const auto chosen =
      std::count_if(parts_.begin(), parts_.end(), [](const Part& part) { return part.chosen; });
  if (chosen == static_cast<std::ptrdiff_t>(parts_.size())) {  // and padding
    return quest_->attend(layer, args, args.query_start, quest_blocks(layer), stream);
  }
  attend_all(layer, args, stream);
  const StepWords at(options_.blocks, options_.sequences);
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (!parts_[s].chosen) continue;
    const auto sequence = static_cast<std::int64_t>(s);
    kernels::Attention own = args;
    own.q = args.q.rows(parts_[s].begin, 1);
    own.out = args.out.rows(parts_[s].begin, 1);
    if (args.lse.data != nullptr) own.lse = args.lse.rows(parts_[s].begin, 1);
    own.kv_length = args.kv_length.rows(sequence, 1);
    own.kv.block_table = args.kv.block_table.rows(sequence, 1);
    quest_->attend(layer, own, ints(at.rows + 2 * sequence, {2}), quest_blocks(layer), stream);
  }
}

void ChunkedCache::attend_all(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  kernels::Attention residents = args;
  residents.kv = slot_view(layer);
  const std::int64_t sequences = args.kv_length.shape[0];
  const StepWords at(options_.blocks, options_.sequences);
  residents.kv.block_table = ints(at.table, {sequences, table_width_});
  residents.kv_length = ints(at.lengths, {sequences});
  residents.max_kv_length = table_width_ * shape_.block_size;
  const bool by_host = host_attention_ && host_attention_->planned();
  if (reads_.empty() && !by_host) return kernels::attention(residents, stream);

  sums_.begin(residents, stream);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    const std::size_t load = static_cast<std::size_t>(layer) * reads_.size() + i;
    const kernels::KvView block = ring_view(ring_.take(load, stream));
    for (const std::size_t sequence : reads_[i].sequences) {
      add_part(block, sequence, args, stream);
    }
    ring_.done(load, stream);
  }
  sums_.finish(args, stream,
               by_host ? host_attention_->end(stream) : kernels::MergeAttention::Part{});
}

// The attention of a sequence's rows to a whole block of earlier tokens.
void ChunkedCache::add_part(const kernels::KvView& kv, std::size_t sequence,
                            const kernels::Attention& args, Stream& stream) {
  const Part& own = parts_[sequence];
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
