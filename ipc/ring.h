// A ring of fixed slots in shared memory: one writer, and N readers that each get every message.
// With one reader it is the ring between two processes.
//
// The writer fills slot n % slots and stores n + 1 into its sequence word; a reader that waits for
// fragment n looks at that word, reads, and stores n + 1 into its own `released` word. The writer
// reuses a slot only when every reader has released its content. Both stores are sequentially
// consistent, as the doorbell requires (doorbell.h); as releases they also publish the payload and
// the end of its reading. There are no locks that a dying process could hold.
//
// A message that fits a slot is read in place. A longer one is split into fragments that stream
// through the ring, even if it is larger than the whole ring, and is reassembled by the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ipc/group.h"
#include "ipc/ring_layout.h"

namespace nvllm::ipc {

using Bytes = std::span<const std::byte>;

// Identifies a ring; all processes that use it have the same values.
struct BroadcastRing {
  std::string name;  // "calls"
  // RingMemory::bytes_needed(shape) bytes, 64-byte aligned, initially zero.
  std::span<std::byte> memory;
  RingShape shape;
  int writer = 0;  // its rank, or kLauncher
  std::vector<int> readers;

  static constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 30;

  // A number by which readers recognize fragments of this ring.
  std::uint32_t identity() const;
};

// Used by the main thread of the writing member, which must outlive it.
class RingWriter {
 public:
  RingWriter(Member& member, BroadcastRing ring);

  // Waits for free slots, up to the group's step timeout; a PeerTimeout then names the slow reader.
  // If it throws in the middle of a message, the readers never get the rest and the ring rejects
  // further messages.
  void send(Bytes message) { send(std::span<const Bytes>(&message, 1)); }
  // Sends one message whose bytes are in several places.
  void send(std::span<const Bytes> parts);
  // Sends a message, waiting for free slots without a time limit. If the launcher requests a stop
  // (Group::request_stop), the message, or the rest of it, is not sent.
  void send_until_stop(Bytes message);

 private:
  enum class Patience { step_timeout, until_stop };
  void send(std::span<const Bytes> parts, Patience patience);
  // False: a stop was requested.
  bool wait_for_room(Patience patience);
  void prepare_next_slot(std::size_t bytes);

  Member& member_;
  BroadcastRing ring_;
  RingMemory& memory_;
  std::uint32_t identity_;
  std::string expectation_;  // what a reader should do, for PeerTimeout
  std::vector<Doorbell*> bells_;
  std::uint64_t next_ = 0;      // the next fragment
  std::uint64_t released_ = 0;  // all readers have released the fragments below this, as last read
  bool broken_ = false;         // a message was cut short
};

// Used by the main thread of a reading member, which must outlive it.
class RingReader {
 public:
  RingReader(Member& member, BroadcastRing ring);

  // The next message: valid until the next call of any of these. Throws PeerTimeout, naming the
  // writer, after the group's step timeout.
  Bytes receive(Nanoseconds spin = Member::kSpin);
  // Receives the next message, without a time limit.
  Bytes receive_idle(Nanoseconds spin = Member::kSpin);
  // The same, but returns nothing once the launcher requests a stop (Group::request_stop).
  std::optional<Bytes> receive_until_stop(Nanoseconds spin = Member::kSpin);
  // Returns nothing if no message starts within the limit.
  std::optional<Bytes> receive_for(Nanoseconds limit, Nanoseconds spin = Member::kSpin);
  // Returns nothing if no message has started.
  std::optional<Bytes> try_receive();
  // Releases the last message's slot before the next message is received.
  void release();

 private:
  RingSlot& slot() { return memory_.slot(ring_.shape, next_); }
  bool arrived() { return slot().sequence.load(std::memory_order_seq_cst) > next_; }
  void await_fragment(Nanoseconds spin);
  Bytes take_message();
  Bytes checked_fragment();
  void advance();

  Member& member_;
  BroadcastRing ring_;
  RingMemory& memory_;
  std::uint32_t identity_;
  std::string expectation_;  // what the writer should do, for PeerTimeout
  std::size_t index_;        // index among the readers
  Doorbell& own_bell_;
  Doorbell& writer_bell_;
  std::uint64_t next_ = 0;           // the next fragment
  bool holds_slot_ = false;          // the last message is in the slot of fragment next_
  std::vector<std::byte> assembly_;  // for messages of several fragments
};

// The fixed set of rings of a group, of which each process opens the ends that it uses. If the
// group spans boxes, the link represents the readers, or the writer, on other boxes (mirror.h).

// Rank 0 to all other ranks.
BroadcastRing calls_ring(const Member& member);
// Rank `rank` (1 and above) to rank 0.
BroadcastRing replies_ring(const Member& member, int rank);
// The launcher to rank 0.
BroadcastRing requests_ring(const Member& member);
// Rank 0 to the launcher.
BroadcastRing results_ring(const Member& member);

}  // namespace nvllm::ipc
