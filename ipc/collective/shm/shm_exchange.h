// ShmExchange: collectives of CPU ranks through the group's shared memory, executed synchronously
// by the caller. ShmCommunicator enqueues them on streams.
//
// Synchronization. Each rank publishes one counter, its step. Every collective is a fixed sequence
// of steps, the same on all ranks: write something to the own staging memory, then publish the next
// step. A rank that needs what rank p wrote in step s waits until p's counter has reached s. There
// are no acknowledgements or barriers. The counter's upper half carries a hash of the call
// (operation, type, size, root), so that ranks which call different collectives get an error.
//
// Staging memory has two parts, which may be reused for different reasons:
//
//   rounds    two slots, used alternately by rounds: put, publish, wait for all ranks, take.
//             Slot r%2 is written in round r. Round r-1 waited until every rank had published
//             round r-1, and each did that after it had taken what it needed of round r-2. So
//             slot r%2 is free.
//
//   chunk     used by two-phase sums, for each chunk of a large all_reduce:
//               W  copy the slices that others own into the own chunk memory; publish
//               R  wait for all; sum the own slice, also into the own chunk memory; publish
//               G  wait for all; copy the slices that others own out of their chunk memory
//             The next W overwrites what the others read in R: G has waited until all had
//             published their R. The next R overwrites what the others read in G: they did
//             that before their next W, for which that R waits.
//             Sums in rounds use its two halves like round slots. Between the two uses there
//             is an empty step, for which all wait.
//
// If these ranks are on several boxes, all sums are computed in rounds: then every step is one
// range of the own staging memory, which the link (ipc/mirror.h) copies to the other boxes before
// it publishes the step there. publish() records the range. At most two steps of a rank are in
// flight: step s + 1 is published after the wait for step s, for which others needed this rank's.
// So two flags hold the ranges, and data written in step s stays until all have it.
//
// If the group is in pipeline stages, the exchange connects the ranks of one stage, which are
// numbered from 0 here; and a part of the staging memory belongs to the stage link
// (ipc/rank_memory_map.h).
//
// Each kind and size of call finds the fastest copy method and chunk size by trials
// (copy_methods.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/dtype.h"
#include "ipc/collective/shm/copy_methods.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread at a time.
class ShmExchange {
 public:
  // Connects the ranks of this rank's stage. An Error if the group's staging memory is too small.
  explicit ShmExchange(Member& member, int stages = 1);

  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce(std::byte* data, DType type, std::size_t elements);
  void reduce_scatter(std::byte* out, const std::byte* in, DType type, std::size_t out_elements);
  void all_gather(std::byte* out, const std::byte* in, std::size_t in_bytes);
  void gather(std::byte* out, const std::byte* in, std::size_t in_bytes, int root);
  void broadcast(std::byte* data, std::size_t bytes, int root);
  void barrier();

 private:
  enum class Kind { all_reduce, reduce_scatter, all_gather, gather, broadcast, barrier };

  // Records the running call, for error messages, the hash and the copy method. `size` is in
  // elements, or in bytes for u8.
  void begin(Kind kind, DType type, std::size_t size, int root);
  // Records the call's time during trials.
  void end();
  // Copies into this rank's staging memory, with the call's method.
  void put(std::byte* to, const std::byte* from, std::size_t bytes);
  // Copies out of another rank's staging memory.
  void take(std::byte* to, const std::byte* from, std::size_t bytes) const;
  void publish();
  // Waits until `peer` has published `step`; wait_for_all() until all peers have.
  void wait_for(int peer, std::uint32_t step);
  void wait_for_all(std::uint32_t step);
  [[noreturn]] void fail_timed_out(int peer) const;

  void reduce_in_one_round(std::byte* data, DType type, std::size_t elements);
  void reduce_in_two_phases(std::byte* data, DType type, std::size_t elements);
  void reduce_chunk(std::byte* data, DType type, std::size_t bytes);
  void reduce_in_rounds(std::byte* data, DType type, std::size_t elements);
  // Adds what the others have written at sources[rank] to `own`; also copies the sum to `result`,
  // unless that is null.
  void sum_and_put(std::span<std::byte> own, DType type,
                   const std::array<const std::byte*, kMaxRanks>& sources, std::byte* result);
  enum class ChunkUse { phases, rounds };
  void use_chunk_memory(ChunkUse use);

  // The stage's rank as a rank of the group, and its part of the staging memory.
  int in_group(int rank) const { return first_ + rank; }
  std::byte* staging(int rank) const;
  std::byte* round_slot(int rank) const;
  std::byte* chunk_memory(int rank) const;
  std::byte* result_memory(int rank) const;  // its last part

  Member& member_;
  const int size_;
  const int first_;  // the stage's first rank in the group
  const int rank_;
  const bool several_boxes_;                 // whether these ranks are on several boxes
  std::size_t put_begin_ = 0, put_end_ = 0;  // range written since the last step, if there are
                                             // several boxes
  std::size_t round_bytes_ = 0;              // a round slot
  std::size_t chunk_bytes_ = 0;

  std::uint32_t step_ = 0;    // last published; wraps around
  std::uint64_t rounds_ = 0;  // rounds finished
  ChunkUse chunk_use_ = ChunkUse::phases;
  std::uint64_t chunk_rounds_ = 0;
  std::uint32_t call_hash_ = 0;
  const char* operation_ = "";

  // For each kind of call, indexed by the bit length of its size in KiB: up to 1 KiB, 2, 4, ... 16
  // MiB.
  static constexpr std::size_t kKinds = 6, kSizes = 15;
  std::array<std::array<CopyTrials, kSizes>, kKinds> trials_;
  CopyTrials* trial_ = nullptr;  // those of the running call
  CopyMethod method_;            // its method
  std::int64_t started_ns_ = 0;  // during trials
  std::int64_t idle_ns_ = 0;     // time spent waiting for late ranks
  std::uint32_t first_step_ = 0;
};

}  // namespace nvllm::ipc
