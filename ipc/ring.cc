#include "ipc/ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cache_line.h"
#include "base/check.h"
#include "base/error.h"
#include "base/text.h"

namespace nvllm::ipc {
namespace {

RingMemory& memory_of(const BroadcastRing& ring) {
  const RingShape& shape = ring.shape;
  NVLLM_CHECK(shape.slots != 0 && (shape.slots & (shape.slots - 1)) == 0, shape.slots, " slots");
  NVLLM_CHECK(ring.readers.size() <= kMaxRingReaders, ring.readers.size(), " readers");
  NVLLM_CHECK_LE(RingMemory::bytes_needed(shape), ring.memory.size());
  NVLLM_CHECK_EQ(reinterpret_cast<std::uintptr_t>(ring.memory.data()) % kCacheLine, 0U);
  return *reinterpret_cast<RingMemory*>(ring.memory.data());
}

// Prefetches all lines at once: read in sequence, each would cost a round trip to the writer's
// cache.
void prefetch_for_read(const std::byte* start, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(start + at);
}

// Longer messages keep the memory system busy enough by themselves.
constexpr std::size_t kPrefetchBytes = 4096;

// Iterates over the bytes of several parts.
class Scatter {
 public:
  explicit Scatter(std::span<const Bytes> parts)
      : part_(parts.data()), end_(parts.data() + parts.size()) {}

  void copy_to(std::byte* out, std::size_t bytes) {
    while (bytes != 0) {
      const std::size_t now = std::min(bytes, part_->size() - at_);
      if (now != 0) std::memcpy(out, part_->data() + at_, now);
      out += now, at_ += now, bytes -= now;
      if (at_ == part_->size() && part_ + 1 != end_) ++part_, at_ = 0;
    }
  }

 private:
  const Bytes* part_;
  const Bytes* end_;
  std::size_t at_ = 0;
};

BroadcastRing ring_at(const Member& member, std::size_t offset, const RingShape& shape) {
  BroadcastRing ring;
  ring.memory = member.channel_memory().subspan(offset, RingMemory::bytes_needed(shape));
  ring.shape = shape;
  return ring;
}

}  // namespace

std::uint32_t BroadcastRing::identity() const {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash;
}

// --- RingWriter ---

RingWriter::RingWriter(Member& member, BroadcastRing ring)
    : member_(member),
      ring_(std::move(ring)),
      memory_(memory_of(ring_)),
      identity_(ring_.identity()),
      expectation_(str("room in ring '", ring_.name, '\'')) {
  NVLLM_CHECK_EQ(member.rank(), ring_.writer);
  for (const int reader : ring_.readers) bells_.push_back(&member.main_bell(reader));
}

void RingWriter::send(std::span<const Bytes> parts) {
  send(parts, Patience::step_timeout);
}

void RingWriter::send_until_stop(Bytes message) {
  // If a message was cut short by the stop, no reader waits for another one.
  if (broken_ && member_.group().stop_requested()) return;
  send(std::span<const Bytes>(&message, 1), Patience::until_stop);
}

void RingWriter::send(std::span<const Bytes> parts, Patience patience) {
  std::uint64_t total = 0;
  for (const Bytes& part : parts) total += part.size();
  if (total > BroadcastRing::kMaxMessageBytes) {
    fail("a message of ", format_bytes(total), " is too large for ring '", ring_.name,
         "'; at most ", format_bytes(BroadcastRing::kMaxMessageBytes));
  }
  if (broken_) fail("ring '", ring_.name, "' is broken: an earlier message ended in the middle");

  Scatter scatter(parts);
  std::uint64_t offset = 0;
  do {
    broken_ = offset != 0;
    if (!wait_for_room(patience)) return;
    RingSlot& slot = memory_.slot(ring_.shape, next_);
    const auto bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(ring_.shape.slot_bytes, total - offset));
    scatter.copy_to(slot.payload(), bytes);
    slot.message_bytes = total;
    slot.offset = offset;
    slot.bytes = bytes;
    slot.ring = identity_;
    slot.sequence.store(++next_, std::memory_order_seq_cst);
    for (Doorbell* bell : bells_) bell->ring();
    offset += bytes;
  } while (offset < total);
  broken_ = false;
  if (total <= ring_.shape.slot_bytes) prepare_next_slot(static_cast<std::size_t>(total));
}

// Called after a message of one slot. Both steps together save a third of the time for 4 KiB: the
// readers find the message in the shared cache, and the lines of the next slot, whose message is
// likely as long, need not first be invalidated in the caches of those who read it one round ago.
// Longer messages are faster without this.
void RingWriter::prepare_next_slot(std::size_t bytes) {
  const std::size_t touched = std::min(RingSlot::kHeaderBytes + bytes, kPrefetchBytes + kCacheLine);
  const auto* sent = reinterpret_cast<const std::byte*>(&memory_.slot(ring_.shape, next_ - 1));
  auto* next = reinterpret_cast<std::byte*>(&memory_.slot(ring_.shape, next_));
  for (std::size_t at = 0; at < touched; at += kCacheLine) demote_cache_line(sent + at);
  for (std::size_t at = 0; at < touched; at += kCacheLine) prefetch_cache_line_for_write(next + at);
}

bool RingWriter::wait_for_room(Patience patience) {
  member_.check_abort();
  if (next_ - released_ < ring_.shape.slots) return true;
  const Group& group = member_.group();
  Doorbell& bell = member_.main_bell(ring_.writer);
  std::uint64_t slowest = next_;
  for (std::size_t i = 0; i < ring_.readers.size(); ++i) {
    const std::atomic<std::uint64_t>& released = memory_.readers[i].released;
    const auto room = [&] {
      return next_ - released.load(std::memory_order_seq_cst) < ring_.shape.slots;
    };
    if (patience == Patience::step_timeout) {
      member_.wait(bell, room, ring_.readers[i], expectation_.c_str());
    } else {
      member_.wait_idle(bell, [&] { return room() || group.stop_requested(); });
      if (!room()) return false;
    }
    slowest = std::min(slowest, released.load(std::memory_order_acquire));
  }
  released_ = slowest;
  return true;
}

// --- RingReader ---

RingReader::RingReader(Member& member, BroadcastRing ring)
    : member_(member),
      ring_(std::move(ring)),
      memory_(memory_of(ring_)),
      identity_(ring_.identity()),
      expectation_(str("a message in ring '", ring_.name, '\'')),
      index_(static_cast<std::size_t>(
          std::find(ring_.readers.begin(), ring_.readers.end(), member.rank()) -
          ring_.readers.begin())),
      own_bell_(member.main_bell(member.rank())),
      writer_bell_(member.main_bell(ring_.writer)) {
  NVLLM_CHECK(index_ < ring_.readers.size(), "rank ", member.rank(), " does not read ring ",
              ring_.name);
}

Bytes RingReader::receive(Nanoseconds spin) {
  release();
  await_fragment(spin);
  return take_message();
}

Bytes RingReader::receive_idle(Nanoseconds spin) {
  release();
  member_.wait_idle(
      own_bell_, [this] { return arrived(); }, spin);
  return take_message();
}

std::optional<Bytes> RingReader::receive_until_stop(Nanoseconds spin) {
  release();
  const Group& group = member_.group();
  member_.wait_idle(
      own_bell_, [&] { return arrived() || group.stop_requested(); }, spin);
  if (group.stop_requested()) return {};
  return take_message();
}

std::optional<Bytes> RingReader::receive_for(Nanoseconds limit, Nanoseconds spin) {
  release();
  if (!member_.wait_for(
          own_bell_, [this] { return arrived(); }, limit, spin))
    return {};
  return take_message();
}

std::optional<Bytes> RingReader::try_receive() {
  release();
  member_.check_abort();
  if (!arrived()) return {};
  return take_message();
}

void RingReader::release() {
  if (!holds_slot_) return;
  holds_slot_ = false;
  advance();
}

void RingReader::await_fragment(Nanoseconds spin) {
  member_.wait(
      own_bell_, [this] { return arrived(); }, ring_.writer, expectation_.c_str(), spin);
}

// Continues a message in whose middle the last receive() timed out.
Bytes RingReader::take_message() {
  if (slot().offset == 0) assembly_.clear();
  while (true) {
    const Bytes fragment = checked_fragment();
    const std::uint64_t total = slot().message_bytes;
    if (fragment.size() == total) {
      holds_slot_ = true;
      return fragment;
    }
    if (assembly_.empty()) assembly_.reserve(total);
    assembly_.insert(assembly_.end(), fragment.begin(), fragment.end());
    advance();
    if (assembly_.size() == total) return assembly_;
    await_fragment(Member::kSpin);
  }
}

// The fragment that has arrived, if it is the expected one.
Bytes RingReader::checked_fragment() {
  RingSlot& slot = this->slot();
  const std::uint64_t sequence = slot.sequence.load(std::memory_order_seq_cst);
  const std::uint64_t total = slot.message_bytes;
  const std::uint64_t left = total - slot.offset;
  const std::uint64_t expected_bytes = std::min<std::uint64_t>(left, ring_.shape.slot_bytes);
  if (sequence != next_ + 1 || slot.ring != identity_ || total > BroadcastRing::kMaxMessageBytes ||
      slot.offset != assembly_.size() || slot.offset > total || slot.bytes != expected_bytes) {
    fail("ring '", ring_.name, "' is corrupt at fragment ", next_, ": found fragment ",
         sequence - 1, " of ring ", slot.ring, ", ", slot.bytes, " bytes at ", slot.offset, " of ",
         total, "; expected ring ", identity_, ", bytes at ", assembly_.size());
  }
  const std::byte* payload = slot.payload();
  prefetch_for_read(payload, std::min<std::size_t>(slot.bytes, kPrefetchBytes));
  return {payload, slot.bytes};
}

void RingReader::advance() {
  memory_.readers[index_].released.store(++next_, std::memory_order_seq_cst);
  writer_bell_.ring();
}

// --- The rings of a group ---

BroadcastRing calls_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).calls, kCallsShape);
  ring.name = "calls";
  ring.writer = 0;
  const Group& group = member.group();
  for (int rank = 1; rank < member.size(); ++rank) {
    if (group.is_here(rank)) ring.readers.push_back(rank);
  }
  // The link reads for the ranks of all other boxes, and writes there instead of rank 0.
  if (group.boxes() > 1 && group.box() == 0) ring.readers.push_back(kLink);
  return ring;
}

BroadcastRing replies_ring(const Member& member, int rank) {
  NVLLM_CHECK(rank >= 1 && rank < member.size(), "rank ", rank);
  const ChannelsLayout layout(member.size());
  BroadcastRing ring =
      ring_at(member, layout.replies + static_cast<std::size_t>(rank - 1) * layout.reply_stride,
              kRepliesShape);
  ring.name = str("replies of rank ", rank);
  ring.writer = rank;
  ring.readers = {member.group().is_here(0) ? 0 : kLink};
  return ring;
}

BroadcastRing requests_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).requests, kRequestsShape);
  ring.name = "requests";
  ring.writer = kLauncher;
  ring.readers = {0};
  return ring;
}

BroadcastRing results_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).results, kResultsShape);
  ring.name = "results";
  ring.writer = 0;
  ring.readers = {kLauncher};
  return ring;
}

}  // namespace nvllm::ipc
