// LoadRing: a few slots of device memory through which parts of blocks come from the host, in an order that
// is known before a pass begins. Loads run on a stream of their own, as far ahead as there are slots.
//
//   ring.begin(loads, repeats, stream);
//   for (i = 0; i < loads.size(); i += count) {
//     ring.take(i, count, stream);                 // from here on the stream's work finds them in their slots
//     ... enqueue what reads them ...
//     ring.done(i, count, stream);                 // the slots' next loads may begin behind that
//   }
//   ring.end(stream);
//
// Of each slot two events order the two streams: `ready`, when its load is done, and `read`, when what was
// enqueued between take() and done() has run. Load i + 1 is in the slot behind that of load i, or in the first one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/backend.h"
#include "kvcache/offload_waits.h"

namespace nvllm::kvcache {

// Used by one thread.
class LoadRing {
 public:
  struct Load {
    const void* from = nullptr;    // pinned
    const Event* after = nullptr;  // nullptr: what is there has been there for long
  };

  // At least two slots. Ledger: "kv ring" (device).
  LoadRing(Backend& backend, std::int64_t slots, std::size_t part_bytes, const OffloadHooks& hooks);

  // `loads`, of part_bytes each, stay as they are until end(). A pass that repeats may be captured: it
  // begins behind the stream's work, ends before what follows, and needs nothing of any other pass.
  // Otherwise its first loads begin as soon as their slots are free, whatever the stream is at.
  void begin(const std::vector<Load>& loads, bool repeats, Stream& stream);
  void take(std::size_t first, std::size_t count, Stream& stream);
  void done(std::size_t first, std::size_t count, Stream& stream);
  void end(Stream& stream);

  // How many loads are worth taking at once: as many are under way meanwhile. From 16 slots on always so many.
  static std::int64_t at_once(std::int64_t slots) { return std::min<std::int64_t>(slots / 2, 8); }

  std::int64_t slots() const { return static_cast<std::int64_t>(ready_[0].size()); }
  void* memory() const { return memory_.data(); }  // slot after slot
  std::int64_t slot_of(std::size_t load) const;
  void* place(std::size_t load) const;

 private:
  void enqueue(std::size_t load);

  Backend& backend_;
  const OffloadHooks& hooks_;
  const std::size_t part_bytes_;
  Buffer memory_;
  std::unique_ptr<Stream> copies_;
  // [repeats][slot]: events of a captured pass mean nothing outside.
  std::vector<std::unique_ptr<Event>> ready_[2], read_[2];
  std::unique_ptr<Event> begun_, ended_, graph_;

  // Of the pass.
  const std::vector<Load>* loads_ = nullptr;
  bool repeats_ = false;
  bool after_graph_ = false;  // the last pass that repeated has not been waited for
  std::int64_t first_ = 0;    // slot of load 0
  std::size_t enqueued_ = 0;
};

}  // namespace nvllm::kvcache
