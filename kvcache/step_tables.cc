#include "kvcache/step_tables.h"

#include <algorithm>

namespace nvllm::kvcache {

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
  // One more than the steps that can be under way, so that none has to be waited for.
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
  staged.copied
      ->synchronize();  // of the step that used it last, which no longer waits for anything
  auto* const words = static_cast<std::int32_t*>(staged.memory.data());
  write(reads, words);
  if (slots.take_changes()) {
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
