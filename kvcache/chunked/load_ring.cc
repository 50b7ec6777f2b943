#include "kvcache/chunked/load_ring.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::kvcache {

LoadRing::LoadRing(Backend& backend, std::int64_t slots, std::size_t part_bytes,
                   const OffloadHooks& hooks)
    : backend_(backend),
      hooks_(hooks),
      part_bytes_(part_bytes),
      copies_(backend.create_stream()),
      started_(backend.create_event()),
      ended_(backend.create_event()),
      graph_(backend.create_event()) {
  if (slots < 2)
    fail("a ring of ", slots, " slots cannot load and compute at once; use at least 2");
  memory_ =
      backend.allocate(MemoryKind::device, static_cast<std::size_t>(slots) * part_bytes, "kv ring");
  for (const bool capturable : {false, true}) {
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      ready_[capturable].push_back(backend.create_event());
      read_[capturable].push_back(backend.create_event());
    }
  }
}

std::int64_t LoadRing::slot_of(std::size_t load) const {
  return (first_ + static_cast<std::int64_t>(load)) % slots();
}

void* LoadRing::place(std::size_t load) const {
  return static_cast<unsigned char*>(memory_.data()) +
         static_cast<std::size_t>(slot_of(load)) * part_bytes_;
}

void LoadRing::begin_pass(const std::vector<Load>& loads, bool capturable, Stream& stream) {
  // Loads continue after the last slot of the previous pass, so that none waits for the slot that
  // was read last; a graph always starts at slot 0.
  first_ = capturable ? 0 : loads_ == nullptr ? 0 : slot_of(enqueued_);
  if (!capturable && after_graph_) {
    graph_->record(stream);
    hooks_.wait(OffloadWait::loads_of_graph, *copies_, *graph_);
    after_graph_ = false;
  }
  loads_ = &loads;
  capturable_ = capturable;
  enqueued_ = 0;
  if (loads.empty()) return;
  if (capturable) {
    started_->record(stream);
    copies_->wait(*started_);
  }
  for (std::size_t load = 0; load < std::min(loads.size(), ready_[0].size()); ++load) enqueue(load);
}

void LoadRing::enqueue(std::size_t load) {
  NVLLM_CHECK_EQ(load, enqueued_);
  ++enqueued_;
  const auto slot = static_cast<std::size_t>(slot_of(load));
  const Load& what = (*loads_)[load];
  // A captured pass only waits for its own loads.
  if (!capturable_ || load >= ready_[0].size()) {
    hooks_.wait(OffloadWait::load_of_slot, *copies_, *read_[capturable_][slot]);
  }
  if (what.after != nullptr) hooks_.wait(OffloadWait::load_of_write, *copies_, *what.after);
  hooks_.delay(Transfer::to_device, *copies_);
  backend_.copy(place(load), what.from, part_bytes_, *copies_);
  ready_[capturable_][slot]->record(*copies_);
}

// Loads complete in order, so the last one's event covers all.
void LoadRing::await_loads(std::size_t first, std::size_t count, Stream& stream) {
  const std::size_t last = first + count - 1;
  NVLLM_CHECK_LT(last, enqueued_);
  hooks_.wait(OffloadWait::attention_of_load, stream,
              *ready_[capturable_][static_cast<std::size_t>(slot_of(last))]);
}

void LoadRing::release_slots(std::size_t first, std::size_t count, Stream& stream) {
  for (std::size_t load = first; load < first + count; ++load) {
    read_[capturable_][static_cast<std::size_t>(slot_of(load))]->record(stream);
    const std::size_t next = load + ready_[0].size();
    if (next < loads_->size()) enqueue(next);
  }
}

void LoadRing::end_pass(Stream& stream) {
  NVLLM_CHECK_EQ(enqueued_, loads_->size());
  if (!capturable_ || loads_->empty()) return;
  ended_->record(*copies_);
  stream.wait(*ended_);
  after_graph_ = true;
}

StagedLayer::StagedLayer(Backend& backend, const BlockShape& shape, std::int64_t blocks)
    : backend_(backend),
      shape_(shape),
      blocks_(blocks),
      half_bytes_(static_cast<std::size_t>(shape.layer_elements()) * size_of(shape.dtype)),
      memory_(backend.allocate(MemoryKind::device, bytes(shape, blocks), "kv staging")) {}

std::size_t StagedLayer::bytes(const BlockShape& shape, std::int64_t blocks) {
  return static_cast<std::size_t>(blocks) * shape.layer_bytes();
}

void StagedLayer::put(std::int64_t number, const void* part, Stream& stream) {
  NVLLM_CHECK(number >= 0 && number < blocks_, number, " of ", blocks_, " blocks");
  auto* const to =
      static_cast<unsigned char*>(memory_.data()) + static_cast<std::size_t>(number) * half_bytes_;
  const auto* const from = static_cast<const unsigned char*>(part);
  backend_.copy(to, from, half_bytes_, stream);
  backend_.copy(to + static_cast<std::size_t>(blocks_) * half_bytes_, from + half_bytes_,
                half_bytes_, stream);
}

kernels::KvView StagedLayer::view() const {
  auto* const keys = static_cast<unsigned char*>(memory_.data());
  const auto tensor = [&](unsigned char* data) {
    return TensorView(data, shape_.dtype,
                      {1, blocks_ * shape_.block_size, shape_.kv_heads, shape_.head_dim});
  };
  return {.keys = tensor(keys),
          .values = tensor(keys + static_cast<std::size_t>(blocks_) * half_bytes_),
          .block_table = {}};
}

}  // namespace nvllm::kvcache
