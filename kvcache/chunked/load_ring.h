// The loading side of chunked offload: LoadRing, the ring of device memory through which blocks are
// loaded from the host; OffloadHooks, with which tests delay copies and omit waits; StagedLayer,
// which assembles one layer of one sequence.
//
// LoadRing has a few slots. The order of the loads is known before a pass begins. Loads run on a
// separate stream, as far ahead as there are slots.
//
//   ring.begin_pass(loads, capturable, stream);
//   for (i = 0; i < loads.size(); i += count) {
//     ring.await_loads(i, count, stream);    // later work of the stream finds them in their slots
//     ... enqueue what reads them ...
//   ring.release_slots(i, count, stream);  // the slots' next loads may start after that
//   }
//   ring.end_pass(stream);
//
// Two events per slot order the two streams: `ready`, when its load is done, and `read`, when the
// work that was enqueued between await_loads() and release_slots() has run. Load i + 1 uses the
// slot after that of load i, wrapping around.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// Every wait of one stream for another in chunked offload, by name. Each occurs at one place in the
// code, and a test can omit one to show that results become wrong without it.
enum class OffloadWait : std::uint8_t {
  load_of_slot,       // a load waits until the previous block in its ring slot has been read
  attention_of_load,  // attention to a ring slot waits for its load
  write_of_store,     // a block's write-out waits until its rows have been stored
  // a block's load waits for its write-out, and for that of its slot's old block
  load_of_write,
  store_of_write,  // rows are stored in a slot after its old block has been written out
  loads_of_graph,  // loads of a step without a graph wait for the end of a graph before it

  queries_of_host,  // the host's cores wait for a layer's queries
  host_of_write,    // and for the write-outs of the blocks that they read
  combine_of_host,  // the combine waits for the cores' results
};
inline constexpr std::size_t kOffloadWaits = 6;        // of loads and write-outs
inline constexpr std::size_t kHostAttentionWaits = 3;  // of the host's cores, after those

enum class Transfer : std::uint8_t { to_device, to_host, by_host };

// For tests; the default has no effect.
struct OffloadHooks {
  // Runs on a copy stream before each copy, or before each call of the host's cores.
  std::function<void(Transfer)> before_copy;
  std::uint32_t left_out = 0;  // bits of OffloadWait

  void wait(OffloadWait which, Stream& stream, const Event& event) const {
    if ((left_out >> static_cast<unsigned>(which) & 1u) == 0) stream.wait(event);
  }
  void delay(Transfer what, Stream& stream) const {
    if (before_copy) stream.host_call([call = before_copy, what] { call(what); });
  }
};

// Not thread-safe.
class LoadRing {
 public:
  struct Load {
    const void* from = nullptr;    // pinned
    const Event* after = nullptr;  // the load waits for it; nullptr: no wait
  };

  // At least two slots. Ledger: "kv ring" (device).
  LoadRing(Backend& backend, std::int64_t slots, std::size_t part_bytes, const OffloadHooks& hooks);

  // Starts a pass. `loads`, of part_bytes each, must not change until end_pass(). capturable: the
  // pass may be captured; it starts after the stream's work, ends before later work, and does not
  // depend on any other pass. Otherwise its first loads start as soon as their slots are free,
  // regardless of the stream's progress.
  void begin_pass(const std::vector<Load>& loads, bool capturable, Stream& stream);
  void await_loads(std::size_t first, std::size_t count, Stream& stream);
  void release_slots(std::size_t first, std::size_t count, Stream& stream);
  void end_pass(Stream& stream);

  // The number of loads to process at once, while as many are in flight. From 16 slots on it is 8.
  static std::int64_t at_once(std::int64_t slots) { return std::min<std::int64_t>(slots / 2, 8); }

  std::int64_t slots() const { return static_cast<std::int64_t>(ready_[0].size()); }
  void* memory() const { return memory_.data(); }  // slots are contiguous
  std::int64_t slot_of(std::size_t load) const;
  void* place(std::size_t load) const;

 private:
  void enqueue(std::size_t load);

  Backend& backend_;
  const OffloadHooks& hooks_;
  const std::size_t part_bytes_;
  Buffer memory_;
  std::unique_ptr<Stream> copies_;
  // [capturable][slot]: events of a captured pass are invalid outside it.
  std::vector<std::unique_ptr<Event>> ready_[2], read_[2];
  std::unique_ptr<Event> started_, ended_, graph_;

  // State of the current pass.
  const std::vector<Load>* loads_ = nullptr;
  bool capturable_ = false;
  bool after_graph_ = false;  // the last captured pass has not been waited for
  std::int64_t first_ = 0;    // slot of load 0
  std::size_t enqueued_ = 0;
};

// StagedLayer: one layer of one sequence in contiguous device memory, for policies that must see
// all of it at once. Blocks are copied to it from ring slots and device slots. They stay until they
// are overwritten, so a block that is already there need not be copied again. Not thread-safe; uses
// one stream.
class StagedLayer {
 public:
  // Allocates memory for `blocks` blocks, bytes(shape, blocks). Ledger: "kv staging" (device).
  StagedLayer(Backend& backend, const BlockShape& shape, std::int64_t blocks);
  static std::size_t bytes(const BlockShape& shape, std::int64_t blocks);

  // Copies the sequence's block number `number`. part: its keys in the layer, followed by its
  // values.
  void put(std::int64_t number, const void* part, Stream& stream);
  // The whole sequence, without a block table.
  kernels::KvView view() const;

 private:
  Backend& backend_;
  const BlockShape shape_;
  const std::int64_t blocks_;
  const std::size_t half_bytes_;  // of a block's keys or values
  Buffer memory_;                 // keys of all blocks, then values
};

}  // namespace nvllm::kvcache
