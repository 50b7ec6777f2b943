// Sends a tensor from a GPU to the GPU of the next pipeline stage, in pieces, through two slots in
// the receiver's memory. Kernels on both sides wait for each other by counters in device memory;
// the host is not involved, so captured graphs may contain sends and receives.
//
// Each rank has a box, mapped by its neighbours through CUDA IPC: counters, then (all but the first
// stage) two slots. Piece n, counted from 0 over all tensors, goes through slot n % 2:
//
//   the sender    waits until its `taken` is n - 1 or more (needed_before_send), writes the slot
//                 in the receiver's box, then sets `arrived` there to n + 1
//   the receiver  waits until its `arrived` is n + 1 or more, copies the slot, then sets `taken`
//                 in the sender's box to n + 1
//
// Every counter has one writer and one reader, which waits on its own GPU's memory. The kernels
// also keep `sent` and `received`, which determine n, because a graph is replayed with the same
// arguments.
//
// A wait ends at the deadline, or when the host requests it. Then `failed` is set: no kernel of the
// link waits or copies any more, its output is undefined, and the host reports the error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvllm::ipc::peer {

inline constexpr std::uint64_t kLinkSlots = 2;
inline constexpr std::size_t kLinkSlotBytes = std::size_t{32} << 20;

// The value of `taken` that is required before sending piece n.
constexpr std::uint64_t needed_before_send(std::uint64_t piece) {
  return piece < kLinkSlots ? 0 : piece + 1 - kLinkSlots;
}
constexpr std::size_t link_slot_of(std::uint64_t piece) {
  return static_cast<std::size_t>(piece % kLinkSlots);
}

// The start of a box. Each writer has a cache line of its own.
struct LinkCounters {
  struct alignas(128) FromPrevious {
    std::uint64_t arrived = 0;             // pieces
    std::uint64_t bytes[kLinkSlots] = {};  // size of the tensor to which each slot's piece belongs
  } from_previous;
  struct alignas(128) FromNext {
    std::uint64_t taken = 0;  // pieces
  } from_next;
};

// A box is large enough to be a separate allocation, because CUDA IPC shares whole allocations.
inline constexpr std::size_t kLinkHeadBytes = std::size_t{2} << 20;
constexpr std::size_t link_box_bytes(bool receives) {
  return kLinkHeadBytes + (receives ? kLinkSlots * kLinkSlotBytes : 0);
}
static_assert(sizeof(LinkCounters) <= kLinkHeadBytes);

// In device memory, for this GPU's kernels only.
struct LinkControl {
  std::uint64_t sent = 0, received = 0;  // pieces
  // Number of blocks of the running kernel that are done.
  std::uint32_t send_ticket = 0, receive_ticket = 0;
  std::uint32_t failed = 0;
  std::uint64_t next_look = 0;  // %globaltimer from which host memory may be read again
};

// In pinned host memory: the host's abort request, and the kernels' report.
struct LinkReport {
  std::uint32_t abort = 0;
  enum State : std::uint32_t { none, timed_out, aborted, mismatched };
  std::uint32_t state = none;  // written last
  std::uint32_t sends = 0;     // 1: a send failed; 0: a receive
  std::uint64_t piece = 0;
  std::uint64_t bytes = 0, expected = 0;  // mismatched: size received, and size expected
};

// Passed to each kernel by value. Boxes at their addresses in this process; nullptr: no such stage.
struct LinkMemory {
  unsigned char* own = nullptr;
  unsigned char* next = nullptr;
  unsigned char* previous = nullptr;
  LinkControl* control = nullptr;
  LinkReport* report = nullptr;
  std::uint64_t deadline_ns = 0;  // of one wait
};

// Calls each(offset, bytes) for the pieces of a tensor, in order.
template <typename Each>
void for_each_piece(std::size_t bytes, const Each& each) {
  for (std::size_t done = 0; done < bytes; done += kLinkSlotBytes) {
    each(done, bytes - done < kLinkSlotBytes ? bytes - done : kLinkSlotBytes);
  }
}

}  // namespace nvllm::ipc::peer
