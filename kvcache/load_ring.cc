#include "kvcache/load_ring.h"

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
      begun_(backend.create_event()),
      ended_(backend.create_event()),
      graph_(backend.create_event()) {
  if (slots < 2)
    fail("a ring of ", slots, " slots cannot load and compute at once; use at least 2");
  memory_ =
      backend.allocate(MemoryKind::device, static_cast<std::size_t>(slots) * part_bytes, "kv ring");
  for (const bool repeats : {false, true}) {
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      ready_[repeats].push_back(backend.create_event());
      read_[repeats].push_back(backend.create_event());
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

void LoadRing::begin(const std::vector<Load>& loads, bool repeats, Stream& stream) {
  // Loads go on where the last pass ended, so that none waits for the slot that was read last; a graph
  // always does the same.
  first_ = repeats ? 0 : loads_ == nullptr ? 0 : slot_of(enqueued_);
  if (!repeats && after_graph_) {
    graph_->record(stream);
    hooks_.wait(OffloadWait::loads_of_graph, *copies_, *graph_);
    after_graph_ = false;
  }
  loads_ = &loads;
  repeats_ = repeats;
  enqueued_ = 0;
  if (loads.empty()) return;
  if (repeats) {
    begun_->record(stream);
    copies_->wait(*begun_);
  }
  for (std::size_t load = 0; load < std::min(loads.size(), ready_[0].size()); ++load) enqueue(load);
}

void LoadRing::enqueue(std::size_t load) {
  NVLLM_CHECK_EQ(load, enqueued_);
  ++enqueued_;
  const auto slot = static_cast<std::size_t>(slot_of(load));
  const Load& what = (*loads_)[load];
  // What is read by a pass that repeats is read by this one.
  if (!repeats_ || load >= ready_[0].size()) {
    hooks_.wait(OffloadWait::load_of_slot, *copies_, *read_[repeats_][slot]);
  }
  if (what.after != nullptr) hooks_.wait(OffloadWait::load_of_write, *copies_, *what.after);
  hooks_.delay(Transfer::to_device, *copies_);
  backend_.copy(place(load), what.from, part_bytes_, *copies_);
  ready_[repeats_][slot]->record(*copies_);
}

// Loads are done in their order, so the last one's event stands for all.
void LoadRing::take(std::size_t first, std::size_t count, Stream& stream) {
  const std::size_t last = first + count - 1;
  NVLLM_CHECK_LT(last, enqueued_);
  hooks_.wait(OffloadWait::attention_of_load, stream,
              *ready_[repeats_][static_cast<std::size_t>(slot_of(last))]);
}

void LoadRing::done(std::size_t first, std::size_t count, Stream& stream) {
  for (std::size_t load = first; load < first + count; ++load) {
    read_[repeats_][static_cast<std::size_t>(slot_of(load))]->record(stream);
    const std::size_t next = load + ready_[0].size();
    if (next < loads_->size()) enqueue(next);
  }
}

void LoadRing::end(Stream& stream) {
  NVLLM_CHECK_EQ(enqueued_, loads_->size());
  if (!repeats_ || loads_->empty()) return;
  ended_->record(*copies_);
  stream.wait(*ended_);
  after_graph_ = true;
}

}  // namespace nvllm::kvcache
