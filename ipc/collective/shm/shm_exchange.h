// ShmExchange: collectives of CPU ranks through the group's shared memory, run at once by the
// caller. ShmCommunicator puts them on streams.
//
// Ranks keep step as follows. Each rank publishes one counter, its step. Every collective is a
// fixed sequence of steps, the same on all ranks: write something into one's own staging memory,
// then publish the next step. Who needs what rank p wrote in step s waits until p's counter has
// reached s. Nothing else is exchanged: no acknowledgements, no barriers. The counter's upper half
// carries a hash of the call (operation, type, size, root), so ranks that call different things are
// told so.
//
// Staging memory has two parts, each with its own reason why it may be written again:
//
//   rounds    two slots, used in turn by rounds: put, publish, wait for all ranks, take.
//             Slot r%2 is written in round r. Round r-1 waited until every rank had published round
//             r-1, and each did that after it had taken what it wanted of round r-2. So slot r%2 is
//             free.
//
//   chunk     what two-phase sums use, for each chunk of a large all_reduce:
//               W  copy the slices that others own into the own chunk memory; publish
//               R  wait for all; sum the own slice, also into the own chunk memory; publish
//               G  wait for all; copy the slices that others own out of their chunk memory
//             The next W overwrites what the others read in R: G has waited until all had published
//             their R. The next R overwrites what the others read in G: they did that before their
//             next W, for which that R waits.
//             Sums that are made in rounds use its two halves as those use their slots. Between the
//             two uses lies an empty step, for which all wait.
//
// Where these ranks are on several boxes, all sums are made in rounds: then every step is one
// stretch of the own staging memory, which the link (ipc/mirror.h) copies to the other boxes before
// it publishes the step there. publish() tells it the stretch. Of a rank's steps at most two are on
// their way: step s + 1 is published after the wait for step s, for which others needed this
// rank's. So two flags hold the stretches, and what was written in step s stays until all have it.
//
// Where the group is in pipeline stages, the exchange is of the ranks of one, which are numbered
// from 0 on here; and a part of the staging memory is the stage link's (ipc/rank_memory_map.h).
//
// Each kind and size of call finds out by trials how to write data there, and in chunks of what
// size (copy_methods.h).
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
  // Of the ranks of this rank's stage, of so many. An Error if the group's staging memory is too
  // small to be of use.
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

  // Notes the call that is running, for error messages, for the hash and for its method. `size` is
  // in elements, or in bytes for u8.
  void begin(Kind kind, DType type, std::size_t size, int root);
  // Counts the call's time while methods are tried.
  void end();
  // Copies into this rank's staging memory, by the call's method.
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
  // Adds to `own` what the others have written at sources[rank]; copies the sum into `result`, too,
  // unless that is null.
  void sum_and_put(std::span<std::byte> own, DType type,
                   const std::array<const std::byte*, kMaxRanks>& sources, std::byte* result);
  enum class ChunkUse { phases, rounds };
  void use_chunk_memory(ChunkUse use);

  // The number of the stage's rank in the group, and its part of the staging memory.
  int in_group(int rank) const { return first_ + rank; }
  std::byte* staging(int rank) const;
  std::byte* round_slot(int rank) const;
  std::byte* chunk_memory(int rank) const;
  std::byte* result_memory(int rank) const;  // its last part

  Member& member_;
  const int size_;
  const int first_;  // rank of the group
  const int rank_;
  const bool several_boxes_;                 // that these ranks are on
  std::size_t put_begin_ = 0, put_end_ = 0;  // what was put since the last step, if several boxes
  std::size_t round_bytes_ = 0;              // a round slot
  std::size_t chunk_bytes_ = 0;

  std::uint32_t step_ = 0;    // published last; wraps
  std::uint64_t rounds_ = 0;  // rounds finished
  ChunkUse chunk_use_ = ChunkUse::phases;
  std::uint64_t chunk_rounds_ = 0;
  std::uint32_t call_hash_ = 0;
  const char* operation_ = "";

  // Of each kind of call, by the size's number of bits in KiB: up to 1 KiB, 2, 4, ... 16 MiB.
  static constexpr std::size_t kKinds = 6, kSizes = 15;
  std::array<std::array<CopyTrials, kSizes>, kKinds> trials_;
  CopyTrials* trial_ = nullptr;  // those of the call that is running
  CopyMethod method_;            // its method
  std::int64_t started_ns_ = 0;  // while trying
  std::int64_t idle_ns_ = 0;     // waiting for ranks that came late
  std::uint32_t first_step_ = 0;
};

}  // namespace nvllm::ipc
