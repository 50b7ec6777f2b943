#include "kvcache/chunked_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "kernels/merge_attention.h"

namespace nvllm::kvcache {
namespace {

constexpr BlockId kNoBlock = -1;
constexpr std::int32_t kNoRead = -1;

std::size_t aligned(std::size_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

std::size_t floats(std::int64_t count) {
  return aligned(static_cast<std::size_t>(count) * sizeof(float));
}

std::size_t part_bytes_of(const BlockShape& shape) {
  return static_cast<std::size_t>(2 * shape.layer_elements()) * size_of(shape.dtype);
}

// Of the accumulators, and of a partial: with their log-sum-exps.
std::size_t partial_bytes(const BlockShape& shape, const ChunkedOptions& options) {
  const std::int64_t heads = options.rows * options.heads;
  return floats(heads * shape.head_dim) + floats(heads);
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

// Rows of a tensor of at least two dimensions.
TensorView rows_of(TensorView tensor, std::int64_t begin, std::int64_t rows) {
  tensor.data = tensor.as<unsigned char>() +
                static_cast<std::size_t>(begin * tensor.stride[0]) * size_of(tensor.dtype);
  tensor.shape[0] = rows;
  return tensor;
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
      partial_memory_(
          backend.allocate(MemoryKind::device, 2 * partial_bytes(shape, options), "kv partials")),
      tokens_(token_memory_.data(), DType::i32, {options.blocks, shape.block_size}),
      writes_(backend.create_stream()),
      stored_(backend.create_event()),
      ring_(backend, options.ring_slots, part_bytes_, options_.hooks),
      open_(static_cast<std::size_t>(options.sequences), kNoBlock),
      block_written_(static_cast<std::size_t>(options.blocks)),
      slot_written_(static_cast<std::size_t>(slots_.size())),
      read_of_(static_cast<std::size_t>(options.blocks), kNoRead) {
  homes_ = ints(0, {options.blocks});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    written_.push_back(backend.create_event());
  }
  // One more than the steps that can be under way, so that none has to be waited for.
  for (int i = 0; i < options.steps_ahead + 2; ++i) {
    staged_.push_back({backend.allocate(MemoryKind::pinned, step_memory_.bytes(), "step input"),
                       backend.create_event()});
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

std::size_t ChunkedCache::device_bytes(const BlockShape& shape, const ChunkedOptions& options) {
  ChunkedOptions no_blocks = options;
  no_blocks.blocks = 0;
  return static_cast<std::size_t>(options.write_slots) * shape.kv_bytes() +
         static_cast<std::size_t>(words_of(no_blocks)) * sizeof(std::int32_t) +
         2 * partial_bytes(shape, options) +
         static_cast<std::size_t>(options.ring_slots) * part_bytes_of(shape);
}

std::size_t ChunkedCache::device_bytes_per_block(const BlockShape& shape) {
  return shape.token_bytes() + sizeof(std::int32_t);
}

TensorView ChunkedCache::ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const {
  return TensorView(static_cast<std::int32_t*>(step_memory_.data()) + first, DType::i32, shape);
}

StepPlan ChunkedCache::begin_step(const KvStep& step, Stream& stream) {
  number_ = step.number;
  open_blocks(step);
  plan_reads(step);
  repeated_ = std::exchange(repeats_, step.may_repeat && filled_.empty());
  const bool new_work = name_work();
  if (repeats_) settle(stream);
  if (new_work) plan_loads();
  stage(stream);
  const auto layers = static_cast<std::uint64_t>(shape_.layers);
  traffic_.to_device += layers * reads_.size() * part_bytes_;
  traffic_.to_host += layers * filled_.size() * part_bytes_;
  return {.repeats = repeats_, .work = work_};
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
    part.resident_tokens = sequence.length();
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
  const bool same = repeats_ && repeated_ && table_width_ == last_width_ && reads_ == last_reads_;
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
  write_out(layer, stream);
  if (args.q.elements() == 0) return;
  const std::int64_t rows = args.q.shape[0];
  kernels::Attention residents = args;
  residents.kv = slot_view(layer);
  const std::int64_t sequences = args.kv_length.shape[0];
  const StepWords at(options_.blocks, options_.sequences);
  residents.kv.block_table = ints(at.table, {sequences, table_width_});
  residents.kv_length = ints(at.lengths, {sequences});
  residents.max_kv_length = table_width_ * shape_.block_size;
  if (reads_.empty()) return kernels::attention(residents, stream);

  const Partials all = partials(rows);
  residents.out = all.sum;
  residents.lse = all.sum_lse;
  kernels::attention(residents, stream);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    const std::size_t load = static_cast<std::size_t>(layer) * reads_.size() + i;
    const kernels::KvView block = ring_view(ring_.take(load, stream));
    for (const std::size_t sequence : reads_[i].sequences) {
      add_part(block, sequence, args, stream);
    }
    ring_.done(load, stream);
  }
  kernels::MergeAttention result;
  result.out = args.out;
  result.lse = args.lse;
  result.parts[0] = {all.sum, all.sum_lse};
  result.count = 1;
  kernels::merge_attention(result, stream);
}

// The attention of a sequence's rows to a whole block of earlier tokens.
void ChunkedCache::add_part(const kernels::KvView& kv, std::size_t sequence,
                            const kernels::Attention& args, Stream& stream) {
  const Part& own = parts_[sequence];
  const Partials all = partials(args.q.shape[0]);
  const StepWords at(options_.blocks, options_.sequences);
  const TensorView full = ints(at.full, {1});
  kernels::Attention part = args;
  part.q = rows_of(args.q, own.begin, own.rows);
  part.out = rows_of(all.part, own.begin, own.rows);
  part.lse = rows_of(all.part_lse, own.begin, own.rows);
  part.kv = kv;
  part.query_start = ints(at.rows + 2 * static_cast<std::int64_t>(sequence), {2});
  part.kv_length = part.visible = full;
  part.max_query_rows = own.rows;
  part.max_kv_length = shape_.block_size;
  kernels::attention(part, stream);

  kernels::MergeAttention merge;
  merge.out = rows_of(all.sum, own.begin, own.rows);
  merge.lse = rows_of(all.sum_lse, own.begin, own.rows);
  merge.parts[0] = {merge.out, merge.lse};
  merge.parts[1] = {part.out, part.lse};
  merge.count = 2;
  kernels::merge_attention(merge, stream);
}

ChunkedCache::Partials ChunkedCache::partials(std::int64_t rows) const {
  auto* data = static_cast<unsigned char*>(partial_memory_.data());
  const auto next = [&](std::int64_t most, std::initializer_list<std::int64_t> shape) {
    const TensorView tensor(data, DType::f32, shape);
    data += floats(most);
    return tensor;
  };
  const std::int64_t heads = options_.heads, most = options_.rows * heads;
  Partials all;
  all.sum = next(most * shape_.head_dim, {rows, heads, shape_.head_dim});
  all.sum_lse = next(most, {rows, heads});
  all.part = next(most * shape_.head_dim, {rows, heads, shape_.head_dim});
  all.part_lse = next(most, {rows, heads});
  return all;
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
