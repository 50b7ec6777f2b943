#include "kvcache/chunked/step_reads.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "kvcache/chunked/host_attention.h"

namespace nvllm::kvcache {
namespace {

constexpr std::int32_t kNoRead = -1;

}  // namespace

StepReads::StepReads(const Rules& rules)
    : rules_(rules),
      read_of_(static_cast<std::size_t>(rules.blocks), kNoRead),
      staging_(
          static_cast<std::size_t>(rules.prompts || rules.whole_sequences ? rules.max_blocks : 0),
          kNoBlock) {
  NVLLM_CHECK(!rules.whole_sequences || (!rules.quest && !rules.prompts),
              "sparse attention to whole sequences");
}

bool StepReads::any(Kind kind) const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.kind == kind; });
}

std::size_t StepReads::run_length(std::size_t first, std::size_t end) const {
  const auto alike = [&](const Read& read) {
    return read.staged == kNotStaged && read.sequences == reads_[first].sequences;
  };
  std::size_t next = first + 1;
  while (next < end && alike(reads_[first]) && alike(reads_[next])) ++next;
  return next - first;
}

bool StepReads::same_as_last() const {
  const auto same_staged = [](const Part& a, const Part& b) {
    return a.kind == b.kind && a.reads_end == b.reads_end && a.staged == b.staged;
  };
  if (rules_.whole_sequences && !std::ranges::equal(parts_, last_parts_, same_staged)) return false;
  return residents_ == last_residents_ && reads_ == last_reads_ && host_reads_ == last_host_reads_;
}

std::span<const BlockId> StepReads::blocks_of(const StepSequence& sequence) const {
  return sequence.blocks.first(
      static_cast<std::size_t>(divide_up(sequence.length(), rules_.block_size)));
}

bool StepReads::all_in_slots(const StepSequence& sequence, const DeviceSlots& slots) const {
  return std::ranges::none_of(blocks_of(sequence), [&](BlockId block) {
    return slots.slot_of(block) == DeviceSlots::kNone;
  });
}

StepReads::Kind StepReads::kind_of(const StepSequence& sequence, const DeviceSlots& slots) const {
  if (rules_.whole_sequences) return all_in_slots(sequence, slots) ? Kind::everything : Kind::whole;
  if (sequence.rows == 1) return rules_.quest ? Kind::quest : Kind::everything;
  const bool chosen = rules_.prompts && sequence.length() >= rules_.min_tokens;
  return chosen ? Kind::prompt : Kind::everything;
}

void StepReads::plan(const KvStep& step, const DeviceSlots& slots, double host_share) {
  forget_reads();
  std::swap(reads_, last_reads_);
  std::swap(host_reads_, last_host_reads_);
  std::swap(parts_, last_parts_);
  reads_.clear();
  host_reads_.clear();
  std::fill(staging_.begin(), staging_.end(), kNoBlock);
  last_residents_ = std::exchange(residents_, 1);
  parts_.resize(step.sequences.size());
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    Part& part = parts_[s];
    part.kind = kind_of(sequence, slots);
    part.begin = begin;
    part.rows = sequence.rows;
    part.first = sequence.first;
    part.later_rows = sequence.later_rows;
    part.residents.clear();
    part.resident_tokens = 0;
    part.staged.clear();
    begin += sequence.rows;
    if (part.is_staged() && !(part.kind == Kind::prompt && find_all(sequence, slots, part)))
      stage(sequence, slots, part);
    part.reads_end = reads_.size();
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (parts_[s].kind == Kind::everything) find(step.sequences[s], slots, s);
  }
  if (reads_.empty()) {
    NVLLM_CHECK_LE(residents_, rules_.max_blocks);
    residents_ = rules_.max_blocks;
  } else {
    residents_ = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(residents_)));
  }
  residents_ = std::min(residents_, std::max<std::int64_t>(slots.size(), 1));
  if (host_share > 0) assign_to_host(host_share);
}

// Finds the slots of all blocks of a prompt. Returns false, with none recorded, if a block has no
// slot.
bool StepReads::find_all(const StepSequence& sequence, const DeviceSlots& slots, Part& part) {
  if (!all_in_slots(sequence, slots)) return false;
  for (const BlockId block : blocks_of(sequence)) part.residents.push_back(slots.slot_of(block));
  residents_ = std::max(residents_, static_cast<std::int64_t>(part.residents.size()));
  return true;
}

// Stages a sequence. Blocks that the staged layer already holds, from a sequence with the same
// prefix, are not loaded again.
void StepReads::stage(const StepSequence& sequence, const DeviceSlots& slots, Part& part) {
  for (std::int64_t number = 0; number * rules_.block_size < sequence.length(); ++number) {
    const BlockId block = sequence.blocks[number];
    if (std::exchange(staging_[static_cast<std::size_t>(number)], block) == block) continue;
    const DeviceSlot slot = slots.slot_of(block);
    if (slot != DeviceSlots::kNone) {
      part.staged.push_back({number, slot});
    } else if (rules_.heads) {
      std::int32_t& place = read_of_[static_cast<std::size_t>(block)];
      if (place == kNoRead) place = static_cast<std::int32_t>(reads_.size());
      reads_.push_back({block, {}, number});
    }
  }
}

void StepReads::find(const StepSequence& sequence, const DeviceSlots& slots, std::size_t place) {
  Part& part = parts_[place];
  part.resident_tokens = sequence.length();
  for (std::int64_t number = 0; number * rules_.block_size < sequence.length(); ++number) {
    const BlockId block = sequence.blocks[number];
    const DeviceSlot slot = slots.slot_of(block);
    if (slot != DeviceSlots::kNone) {
      part.residents.push_back(slot);
    } else {
      if (rules_.heads) read(block, place);
      part.resident_tokens -= rules_.block_size;
    }
  }
  residents_ = std::max(residents_, static_cast<std::int64_t>(part.residents.size()));
}

void StepReads::read(BlockId block, std::size_t sequence) {
  std::int32_t& place = read_of_[static_cast<std::size_t>(block)];
  if (place == kNoRead) {
    place = static_cast<std::int32_t>(reads_.size());
    reads_.push_back({block, {}, kNotStaged});
  }
  reads_[static_cast<std::size_t>(place)].sequences.push_back(sequence);
}

void StepReads::forget_reads() {
  for (const Read& read : reads_) read_of_[static_cast<std::size_t>(read.block)] = kNoRead;
}

// Assigns the host's share of the reads of the first sequences that have one row each. Reads for
// the staged layer always use the ring, before all others.
void StepReads::assign_to_host(double share) {
  const auto several =
      std::find_if(parts_.begin(), parts_.end(), [](const Part& part) { return part.rows != 1; });
  const auto rows = static_cast<std::size_t>(several - parts_.begin());
  readers_.clear();
  for (const Read& read : reads_) {
    const bool can = read.staged == kNotStaged && read.sequences.back() < rows;
    readers_.push_back(can ? static_cast<std::int32_t>(read.sequences.size()) : 0);
  }
  choose_for_host(readers_, share, taken_);
  forget_reads();
  std::size_t left = 0;
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    Read& read = reads_[i];
    if (!taken_[i]) {
      read_of_[static_cast<std::size_t>(read.block)] = static_cast<std::int32_t>(left);
      if (left != i) std::swap(reads_[left], read);
      ++left;
      continue;
    }
    for (const std::size_t sequence : read.sequences) {
      host_reads_.push_back({static_cast<std::int32_t>(sequence), read.block});
    }
  }
  reads_.resize(left);
  std::stable_sort(host_reads_.begin(), host_reads_.end(),
                   [](const HostRead& a, const HostRead& b) { return a.row < b.row; });
}

StepTables::Places::Places(const Limits& limits)
    : whole(limits.blocks),
      ring(whole + limits.ring_at_once),
      lengths(ring + limits.ring_slots + limits.ring_at_once),
      rows(lengths + limits.sequences),
      table(rows + 2 * limits.sequences),
      end(table + limits.sequences * limits.slots) {}

StepTables::StepTables(Backend& backend, const Limits& limits)
    : backend_(backend),
      limits_(limits),
      at_(limits),
      memory_(backend.allocate(MemoryKind::device,
                               static_cast<std::size_t>(at_.end) * sizeof(std::int32_t),
                               "step input")) {
  if (limits.addresses) {
    addresses_.resize(static_cast<std::size_t>(limits.blocks));
    address_memory_ =
        backend.allocate(MemoryKind::device, addresses_.size() * sizeof(std::int64_t), "quest");
  }
  // One more than the number of steps in flight, so that no step waits for its staging memory.
  for (int i = 0; i < limits.steps_ahead + 2; ++i) {
    staged_.push_back(
        {backend.allocate(MemoryKind::pinned, memory_.bytes(), "step input"),
         backend.create_event(),
         backend.allocate(MemoryKind::pinned, address_memory_.bytes(), "step input")});
  }
}

std::size_t StepTables::bytes(const Limits& limits) {
  const std::size_t addresses =
      limits.addresses ? static_cast<std::size_t>(limits.blocks) * sizeof(std::int64_t) : 0;
  return static_cast<std::size_t>(Places(limits).end) * sizeof(std::int32_t) + addresses;
}

TensorView StepTables::ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const {
  return TensorView(static_cast<std::int32_t*>(memory_.data()) + first, DType::i32, shape);
}

TensorView StepTables::block_map() const {
  return ints(0, {limits_.blocks});
}
TensorView StepTables::addresses() const {
  return TensorView(address_memory_.data(), DType::i64, {limits_.blocks});
}
TensorView StepTables::whole(std::int64_t blocks) const {
  return ints(at_.whole + blocks - 1, {1});
}
TensorView StepTables::ring(std::int64_t slot, std::int64_t blocks) const {
  return ints(at_.ring + slot, {1, blocks});
}
TensorView StepTables::rows(std::size_t sequence) const {
  return ints(at_.rows + 2 * static_cast<std::int64_t>(sequence), {2});
}
TensorView StepTables::lengths(std::int64_t sequences) const {
  return ints(at_.lengths, {sequences});
}
TensorView StepTables::table(std::int64_t sequences, std::int64_t blocks) const {
  return ints(at_.table, {sequences, blocks});
}

void StepTables::set_address(BlockId block, const void* address) {
  addresses_[static_cast<std::size_t>(block)] = reinterpret_cast<std::int64_t>(address);
}

void StepTables::write(const StepReads& reads, std::int32_t* words) const {
  for (std::int64_t blocks = 1; blocks <= limits_.ring_at_once; ++blocks) {
    words[at_.whole + blocks - 1] = static_cast<std::int32_t>(blocks * limits_.block_size);
  }
  for (std::int64_t i = 0; i < limits_.ring_slots + limits_.ring_at_once; ++i) {
    words[at_.ring + i] = static_cast<std::int32_t>(i % limits_.ring_slots);
  }
  std::fill_n(words + at_.lengths, limits_.sequences, 0);
  for (std::size_t s = 0; s < reads.parts().size(); ++s) {
    const StepReads::Part& part = reads.parts()[s];
    const auto row = static_cast<std::int64_t>(s);
    words[at_.lengths + row] = static_cast<std::int32_t>(part.resident_tokens);
    words[at_.rows + 2 * row] = 0;
    words[at_.rows + 2 * row + 1] = static_cast<std::int32_t>(part.rows);
    std::copy(part.residents.begin(), part.residents.end(),
              words + at_.table + row * reads.residents());
  }
}

void StepTables::stage(const StepReads& reads, DeviceSlots& slots, Stream& stream) {
  Staged& staged = staged_[next_];
  next_ = (next_ + 1) % staged_.size();
  staged.copied->synchronize();  // of the step that used it last, which has completed
  auto* const words = static_cast<std::int32_t*>(staged.memory.data());
  write(reads, words);
  if (slots.take_changed()) {
    std::copy(slots.block_map().begin(), slots.block_map().end(), words);
    backend_.copy(block_map().data, words, block_map().bytes(), stream);
    if (limits_.addresses) {
      std::copy(addresses_.begin(), addresses_.end(),
                static_cast<std::int64_t*>(staged.addresses.data()));
      backend_.copy(address_memory_.data(), staged.addresses.data(), address_memory_.bytes(),
                    stream);
    }
  }
  const std::int64_t end =
      at_.table + static_cast<std::int64_t>(reads.parts().size()) * reads.residents();
  backend_.copy(ints(at_.whole, {1}).data, words + at_.whole,
                static_cast<std::size_t>(end - at_.whole) * sizeof(std::int32_t), stream);
  staged.copied->record(stream);
}

}  // namespace nvllm::kvcache
