// The layout of a ring in shared memory; ipc/ring.h explains how it works.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nvllm::ipc {

struct RingShape {
  std::uint32_t slots = 0;       // a power of two
  std::uint32_t slot_bytes = 0;  // payload of each slot; a multiple of 64
};

inline constexpr int kMaxRingReaders = 8;

// The header of each slot. The payload follows in the same and the next cache lines, so that for a
// reader which sees the sequence number the first bytes are already in flight.
struct alignas(64) RingSlot {
  std::atomic<std::uint64_t> sequence;  // n + 1 once the slot contains fragment n of the ring
  std::uint64_t message_bytes;          // of the whole message
  std::uint64_t offset;                 // of this fragment in it
  std::uint32_t bytes;                  // size of this fragment
  std::uint32_t ring;                   // the ring's identity, to detect fragments of another one

  static constexpr std::size_t kHeaderBytes = 40;
  std::byte* payload() { return reinterpret_cast<std::byte*>(this) + kHeaderBytes; }
};
static_assert(sizeof(RingSlot) == 64);

struct RingMemory {
  // Reader k has released all fragments below this. One cache line each: readers do not disturb
  // each other, and the writer reads it only when it needs free slots.
  struct alignas(64) Reader {
    std::atomic<std::uint64_t> released;
  };
  std::array<Reader, kMaxRingReaders> readers;

  static constexpr std::size_t slot_stride(const RingShape& shape) {
    return (RingSlot::kHeaderBytes + shape.slot_bytes + 63) / 64 * 64;
  }
  static constexpr std::size_t bytes_needed(const RingShape& shape) {
    return sizeof(RingMemory) + shape.slots * slot_stride(shape);
  }
  RingSlot& slot(const RingShape& shape, std::uint64_t fragment) {
    auto* first = reinterpret_cast<std::byte*>(this + 1);
    return *reinterpret_cast<RingSlot*>(first +
                                        (fragment & (shape.slots - 1)) * slot_stride(shape));
  }
};

// --- The rings of a group and their offsets in its segment (ring.h opens them) ---

// A step message is a few KiB and fits a slot; a prefill's token lists span some.
inline constexpr RingShape kCallsShape{32, 16384};
inline constexpr RingShape kRepliesShape{16, 8192};
inline constexpr RingShape kRequestsShape{16, 16384};
inline constexpr RingShape kResultsShape{64, 4096};

struct ChannelsLayout {
  std::size_t calls = 0;     // rank 0 to all others
  std::size_t requests = 0;  // launcher to rank 0
  std::size_t results = 0;   // rank 0 to launcher
  std::size_t replies = 0;   // rank 1 to rank 0; then those of ranks 2, 3, ...
  std::size_t reply_stride = 0;
  std::size_t bytes = 0;  // total size

  explicit constexpr ChannelsLayout(int size) {
    requests = calls + RingMemory::bytes_needed(kCallsShape);
    results = requests + RingMemory::bytes_needed(kRequestsShape);
    replies = results + RingMemory::bytes_needed(kResultsShape);
    reply_stride = RingMemory::bytes_needed(kRepliesShape);
    bytes = replies + static_cast<std::size_t>(size - 1) * reply_stride;
  }
};

}  // namespace nvllm::ipc
