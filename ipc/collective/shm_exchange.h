// ShmExchange: collectives of CPU ranks through the group's shared memory, run at once by the caller.
// ShmCommunicator puts them on streams.
//
// How ranks keep step. Each rank publishes one counter, its step. Every collective is a fixed sequence
// of steps, the same on all ranks: write something into one's own staging memory, then publish the next
// step. Who needs what rank p wrote in step s waits until p's counter has reached s. Nothing else is
// exchanged: no acknowledgements, no barriers. The counter's upper half carries a hash of the call
// (operation, type, size, root), so ranks that call different things are told so.
//
// When staging memory may be written again. Its parts:
//
//   rounds    two slots, used in turn by rounds: put, publish, wait for all ranks, take.
//             Slot r%2 is written in round r. Round r-1 waited until every rank had published round r-1,
//             and each did that after it had taken what it wanted of round r-2. So slot r%2 is free.
//
//   pipeline  three input and three result slots of a large all_reduce, which goes chunk by chunk:
//               W(i)  copy the slices of chunk i that others own into input slot i%3, publish
//               R(i)  wait for all W(i); sum the own slice, also into result slot i%3; publish
//               G(i)  wait for all R(i); copy the slices that others own out of their result slots
//             in the order W(0), W(1) R(0), W(2) R(1) G(0), W(3) R(2) G(1), ... so that what R and G
//             wait for was published a whole chunk earlier. W(i) overwrites input slot (i-3), which the
//             others read in their R(i-3): G(i-3) has waited for those. R(i) overwrites result slot
//             (i-3), which the others read in their G(i-3): that came before their W(i), for which R(i)
//             waited. After the last chunk all G are done, so the argument holds across calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/dtype.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread at a time.
class ShmExchange {
 public:
  // An Error if the group's staging memory is too small to be of use.
  explicit ShmExchange(Member& member);

  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce(std::byte* data, DType type, std::size_t elements);
  void reduce_scatter(std::byte* out, const std::byte* in, DType type, std::size_t out_elements);
  void all_gather(std::byte* out, const std::byte* in, std::size_t in_bytes);
  void gather(std::byte* out, const std::byte* in, std::size_t in_bytes, int root);
  void broadcast(std::byte* data, std::size_t bytes, int root);
  void barrier();

 private:
  // The call that is running, for messages and for the hash.
  void begin(const char* operation, DType type, std::size_t size, int root);
  void publish();
  // Until `peer` has published `step`. The second form: all peers.
  void wait_for(int peer, std::uint32_t step);
  void wait_for_all(std::uint32_t step);

  void reduce_in_one_round(std::byte* data, DType type, std::size_t elements);
  void reduce_in_pipeline(std::byte* data, DType type, std::size_t elements);

  std::byte* round_slot(int rank) const;
  std::byte* input_slot(int rank, std::uint64_t chunk) const;
  std::byte* result_slot(int rank, std::uint64_t chunk) const;

  Member& member_;
  const int rank_;
  const int size_;
  // In bytes: a round slot, an input slot, and a rank's slice of it, which is a result slot.
  std::size_t round_bytes_ = 0;
  std::size_t chunk_bytes_ = 0;
  std::size_t slice_bytes_ = 0;

  std::uint32_t step_ = 0;       // published last; wraps
  std::uint64_t rounds_ = 0;     // rounds begun so far
  std::uint64_t chunks_ = 0;     // chunks of finished pipelines
  std::uint32_t call_hash_ = 0;
  const char* operation_ = "";
};

}  // namespace nvllm::ipc
