#include "ipc/mirror.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "ipc/archive.h"
#include "ipc/group_memory.h"

namespace nvllm::ipc {
namespace {

std::int64_t age(std::int64_t since_ns, std::int64_t now) {
  return std::max<std::int64_t>(0, now - since_ns);
}

// A record as it is sent: times are ages.
struct RecordMessage {
  std::int32_t pid = 0;
  std::uint32_t phase = 0;
  std::uint64_t step = 0, progress = 0;
  std::int64_t heartbeat_age = 0;
  std::string call, collective;
  std::uint64_t call_number = 0, collective_number = 0;
  std::int64_t call_age = 0, collective_age = 0;
  std::int32_t waits_for = 0;
  std::string error_text;
  std::int32_t wait_status = 0, stopped_by = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(pid, phase, step, progress, heartbeat_age, call, collective, call_number,
            collective_number, call_age, collective_age, waits_for, error_text, wait_status,
            stopped_by);
  }
};

RecordMessage message_of(const RankSnapshot& record) {
  const std::int64_t now = now_ns();
  RecordMessage message;
  message.pid = record.pid;
  message.phase = static_cast<std::uint32_t>(record.phase);
  message.step = record.step;
  message.progress = record.progress;
  message.heartbeat_age = age(record.heartbeat_ns, now);
  message.call = record.call.text;
  message.call_number = record.call.number;
  message.call_age = age(record.call.since_ns, now);
  message.collective = record.collective.text;
  message.collective_number = record.collective.number;
  message.collective_age = age(record.collective.since_ns, now);
  message.waits_for = record.waits_for;
  message.error_text = record.error_text;
  message.wait_status = record.wait_status;
  message.stopped_by = record.stopped_by;
  return message;
}

}  // namespace

GroupMirror::GroupMirror(Member& link, int stages)
    : link_(link),
      group_(link.group()),
      stages_{.ranks = group_.size(), .stages = stages},
      first_(group_.first_rank(group_.box())),
      end_(first_ + group_.ranks_of(group_.box())),
      calls_(end_of(calls_ring(link))),
      sent_(static_cast<std::size_t>(group_.size())),
      ended_(static_cast<std::size_t>(group_.boxes())) {
  NVLLM_CHECK_EQ(link.rank(), kLink);
  for (int rank = 1; rank < group_.size(); ++rank) {
    replies_.push_back(end_of(replies_ring(link, rank)));
  }
}

GroupMirror::RingEnd GroupMirror::end_of(BroadcastRing ring) const {
  NVLLM_CHECK_LE(RingMemory::bytes_needed(ring.shape), ring.memory.size());
  auto* const memory = reinterpret_cast<RingMemory*>(ring.memory.data());
  return {.ring = std::move(ring), .memory = memory, .next = 0, .waiting = {}};
}

// --- Collecting what was written on this box ---

bool GroupMirror::arrived(const RingEnd& end) const {
  return end.slot().sequence.load(std::memory_order_seq_cst) > end.next;
}

bool GroupMirror::has_output() const {
  if (group_.aborted() && !abort_sent_) return true;
  if (first_ == 0 && arrived(calls_)) return true;
  for (int rank = first_; rank < end_; ++rank) {
    const Sent& sent = sent_[static_cast<std::size_t>(rank)];
    const RankMemory& memory = group_.shared_->rank(rank);
    if (memory.exchange.published.load(std::memory_order_seq_cst) != sent.blobs) return true;
    if (stage_is_split(rank) && static_cast<std::uint32_t>(flag(rank, kStepFlag)) != sent.step) {
      return true;
    }
    if (is_elsewhere(stages_.receiver_of(rank)) && flag(rank, kSentFlag) != sent.pieces)
      return true;
    if (is_elsewhere(stages_.sender_to(rank)) && flag(rank, kTakenFlag) != sent.taken) return true;
    if (first_ > 0 && arrived(replies_[static_cast<std::size_t>(rank - 1)])) return true;
  }
  return false;
}

std::uint64_t GroupMirror::flag(int rank, std::size_t index) const {
  return group_.shared_->rank(rank).flags[index].value.load(std::memory_order_seq_cst);
}

bool GroupMirror::stage_is_split(int rank) const {
  const int first = stages_.first_of_stage(rank);
  return !group_.is_here(first) || !group_.is_here(first + stages_.of_stage() - 1);
}

void GroupMirror::append_to(std::vector<std::byte>& out, const Header& header, Bytes payload) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&header);
  out.insert(out.end(), bytes, bytes + sizeof(header));
  out.insert(out.end(), payload.begin(), payload.end());
}

void GroupMirror::append(Outboxes& out, const Header& header, Bytes payload) const {
  for (int box = 0; box < group_.boxes(); ++box) {
    if (box != group_.box()) append_to(out[static_cast<std::size_t>(box)], header, payload);
  }
}

void GroupMirror::append_for_stage(int rank, Outboxes& out, const Header& header,
                                   Bytes payload) const {
  const int first = stages_.first_of_stage(rank);
  const int last_box = group_.box_of(first + stages_.of_stage() - 1);
  for (int box = group_.box_of(first); box <= last_box; ++box) {
    if (box != group_.box()) append_to(out[static_cast<std::size_t>(box)], header, payload);
  }
}

bool GroupMirror::full(const Outboxes& out) {
  return std::ranges::any_of(out, [](const auto& box) { return box.size() >= kBatchBytes; });
}

void GroupMirror::collect(Outboxes& out) {
  if (group_.aborted() && !std::exchange(abort_sent_, true)) {
    collect_records(out);
    const std::string reason = group_.abort_reason();
    const Header header{.bytes = static_cast<std::uint32_t>(reason.size()), .kind = Kind::abort};
    append(out, header, std::as_bytes(std::span(reason)));
  }
  if (first_ == 0) collect_ring(calls_, Kind::call, 0, out);
  for (int rank = first_; rank < end_ && !full(out); ++rank) {
    if (stage_is_split(rank)) collect_steps(rank, out);
    collect_pieces(rank, out);
    collect_taken(rank, out);
    collect_blobs(rank, out);
    if (first_ == 0) continue;
    collect_ring(replies_[static_cast<std::size_t>(rank - 1)], Kind::reply, rank, out);
  }
}

void GroupMirror::collect_ring(RingEnd& end, Kind kind, int rank, Outboxes& out) {
  const auto self = std::ranges::find(end.ring.readers, kLink) - end.ring.readers.begin();
  std::atomic<std::uint64_t>& released =
      end.memory->readers[static_cast<std::size_t>(self)].released;
  bool any = false;
  while (arrived(end) && !full(out)) {
    RingSlot& slot = end.slot();
    const Header header{.bytes = std::min(slot.bytes, end.ring.shape.slot_bytes),
                        .kind = kind,
                        .rank = static_cast<std::uint8_t>(rank),
                        .first = slot.message_bytes,
                        .second = slot.offset};
    const Bytes payload(slot.payload(), header.bytes);
    if (kind == Kind::call) {
      append(out, header, payload);
    } else {
      append_to(out[0], header, payload);
    }
    released.store(++end.next, std::memory_order_seq_cst);
    any = true;
  }
  if (any) link_.main_bell(end.ring.writer).ring();
}

// At most two are in flight, as for steps: round r + 1 is published after all ranks have r.
void GroupMirror::collect_blobs(int rank, Outboxes& out) {
  const ExchangeBox& box = group_.shared_->rank(rank).exchange;
  std::uint64_t& sent = sent_[static_cast<std::size_t>(rank)].blobs;
  for (const std::uint64_t published = box.published.load(std::memory_order_seq_cst);
       sent < published; ++sent) {
    const ExchangeBox::Blob& blob = box.blobs[sent % 2];
    const Header header{.bytes = static_cast<std::uint32_t>(
                            std::min<std::uint64_t>(blob.bytes, Member::kExchangeBytes)),
                        .kind = Kind::blob,
                        .rank = static_cast<std::uint8_t>(rank),
                        .first = sent};
    append(out, header, Bytes(blob.data.data(), header.bytes));
  }
}

// ShmExchange explains why at most two steps are in flight. The earlier one's data is sent first
// and published with the later one's, which also satisfies those who wait for the earlier one.
void GroupMirror::collect_steps(int rank, Outboxes& out) {
  const std::uint64_t published = flag(rank, kStepFlag);
  const auto step = static_cast<std::uint32_t>(published);
  std::uint32_t& sent = sent_[static_cast<std::size_t>(rank)].step;
  if (step == sent) return;
  const std::uint32_t steps = step - sent;
  NVLLM_CHECK(steps <= 2, "rank ", rank, " is ", steps, " steps ahead of its link");
  if (steps == 2) collect_data(rank, step - 1, out);
  collect_data(rank, step, out);
  sent = step;
  append_for_stage(
      rank, out, {.kind = Kind::step, .rank = static_cast<std::uint8_t>(rank), .first = published},
      {});
}

void GroupMirror::collect_data(int rank, std::uint32_t step, Outboxes& out) const {
  const std::uint64_t stretch = flag(rank, kStretchFlags + step % 2);
  const std::uint64_t offset = stretch >> 32, bytes = stretch & 0xffffffffU;
  if (bytes == 0) return;
  const std::span<std::byte> staging = link_.staging(rank);
  NVLLM_CHECK(offset + bytes <= staging.size(), offset, " + ", bytes, " of ", staging.size());
  append_for_stage(rank, out,
                   {.bytes = static_cast<std::uint32_t>(bytes),
                    .kind = Kind::data,
                    .rank = static_cast<std::uint8_t>(rank),
                    .first = offset},
                   staging.subspan(offset, bytes));
}

// At most two are in flight: the sender writes the next one when the receiver has taken one, and
// learns of that through the receiver's link.
void GroupMirror::collect_pieces(int rank, Outboxes& out) {
  const int receiver = stages_.receiver_of(rank);
  if (!is_elsewhere(receiver)) return;
  std::uint64_t& sent = sent_[static_cast<std::size_t>(rank)].pieces;
  const std::uint64_t published = flag(rank, kSentFlag);
  NVLLM_CHECK(published - sent <= kStageSlots, "rank ", rank, " has written ", published - sent,
              " pieces that its link has not sent");
  for (; sent < published; ++sent) {
    const std::uint64_t left = flag(rank, kBytesFlags + sent % kStageSlots);
    const Bytes slot = stage_slot(link_, stages_.stages, rank, sent);
    const Bytes piece = slot.first(std::min<std::uint64_t>(left, slot.size()));
    append_to(out[static_cast<std::size_t>(group_.box_of(receiver))],
              {.bytes = static_cast<std::uint32_t>(piece.size()),
               .kind = Kind::piece,
               .rank = static_cast<std::uint8_t>(rank),
               .first = sent,
               .second = left},
              piece);
  }
}

void GroupMirror::collect_taken(int rank, Outboxes& out) {
  const int sender = stages_.sender_to(rank);
  if (!is_elsewhere(sender)) return;
  std::uint64_t& sent = sent_[static_cast<std::size_t>(rank)].taken;
  const std::uint64_t taken = flag(rank, kTakenFlag);
  if (taken == std::exchange(sent, taken)) return;
  append_to(out[static_cast<std::size_t>(group_.box_of(sender))],
            {.kind = Kind::taken, .rank = static_cast<std::uint8_t>(rank), .first = taken}, {});
}

void GroupMirror::collect_records(Outboxes& out) const {
  ArchiveWriter archive;
  for (int rank = first_; rank < end_; ++rank) {
    archive.clear();
    archive(message_of(group_.snapshot(rank)));
    append(out,
           {.bytes = static_cast<std::uint32_t>(archive.bytes().size()),
            .kind = Kind::record,
            .rank = static_cast<std::uint8_t>(rank)},
           archive.bytes());
  }
}

void GroupMirror::collect_end(Outboxes& out) const {
  append(out, {.kind = Kind::end}, {});
}

// --- Applying what other boxes sent ---

bool GroupMirror::apply(int from, Bytes batch) {
  bool work = false;
  while (!batch.empty()) {
    Header header;
    if (batch.size() < sizeof(header)) break;
    std::memcpy(&header, batch.data(), sizeof(header));
    batch = batch.subspan(sizeof(header));
    const bool of_rank = header.kind < Kind::abort;
    const bool known =
        header.kind <= Kind::end &&
        (!of_rank || (header.rank < group_.size() && group_.box_of(header.rank) == from));
    if (!known || header.bytes > batch.size()) {
      fail("a message from ", group_.box_text(from), " is corrupt: kind ",
           static_cast<int>(header.kind), ", rank ", static_cast<int>(header.rank), ", ",
           header.bytes, " bytes of ", batch.size());
    }
    apply_one(from, header, batch.first(header.bytes));
    work |= header.kind != Kind::record;
    batch = batch.subspan(header.bytes);
  }
  if (!batch.empty()) fail("a message from ", group_.box_text(from), " ends in the middle");
  return work;
}

void GroupMirror::apply_one(int from, const Header& header, Bytes payload) {
  switch (header.kind) {
    case Kind::call: return apply_fragment(calls_, header, payload);
    case Kind::reply:
      if (header.rank == 0) fail("a reply of rank 0 came from ", group_.box_text(from));
      return apply_fragment(replies_[header.rank - std::size_t{1}], header, payload);
    case Kind::blob: return apply_blob(header, payload);
    case Kind::data: return apply_data(header, payload);
    case Kind::step:
      group_.shared_->rank(header.rank)
          .flags[kStepFlag]
          .value.store(header.first, std::memory_order_seq_cst);
      return ring_collective_bells();
    case Kind::piece: return apply_piece(header, payload);
    case Kind::taken: return apply_taken(header);
    case Kind::record: return apply_record(header.rank, payload);
    case Kind::abort:
      abort_sent_ = true;  // every box gets it from where it originated
      return group_.abort({reinterpret_cast<const char*>(payload.data()), payload.size()}, from);
    case Kind::end: ended_[static_cast<std::size_t>(from)] = true; return;
  }
}

void GroupMirror::apply_fragment(RingEnd& end, const Header& header, Bytes payload) {
  if (payload.size() > end.ring.shape.slot_bytes) {
    fail(payload.size(), " bytes are too many for a slot of ring '", end.ring.name, '\'');
  }
  end.waiting.push_back({.message_bytes = header.first,
                         .offset = header.second,
                         .bytes = {payload.begin(), payload.end()}});
  deliver_to(end);
}

bool GroupMirror::has_room(const RingEnd& end) const {
  for (std::size_t i = 0; i < end.ring.readers.size(); ++i) {
    const std::uint64_t released = end.memory->readers[i].released.load(std::memory_order_seq_cst);
    if (end.next - released >= end.ring.shape.slots) return false;
  }
  return true;
}

bool GroupMirror::deliver_to(RingEnd& end) {
  bool any = false;
  while (!end.waiting.empty() && has_room(end)) {
    const RingEnd::Waiting& fragment = end.waiting.front();
    RingSlot& slot = end.slot();
    std::copy(fragment.bytes.begin(), fragment.bytes.end(), slot.payload());
    slot.message_bytes = fragment.message_bytes;
    slot.offset = fragment.offset;
    slot.bytes = static_cast<std::uint32_t>(fragment.bytes.size());
    slot.ring = end.ring.identity();
    slot.sequence.store(++end.next, std::memory_order_seq_cst);
    end.waiting.pop_front();
    any = true;
  }
  if (any) {
    for (const int reader : end.ring.readers) link_.main_bell(reader).ring();
  }
  return any;
}

bool GroupMirror::deliver() {
  bool any = deliver_to(calls_);
  for (RingEnd& end : replies_) any |= deliver_to(end);
  return any;
}

void GroupMirror::apply_blob(const Header& header, Bytes payload) {
  if (payload.size() > Member::kExchangeBytes) fail(payload.size(), " bytes in an exchange");
  ExchangeBox& box = group_.shared_->rank(header.rank).exchange;
  ExchangeBox::Blob& blob = box.blobs[header.first % 2];
  blob.bytes = payload.size();
  std::copy(payload.begin(), payload.end(), blob.data.begin());
  box.published.store(header.first + 1, std::memory_order_seq_cst);
  ring_main_bells();
}

void GroupMirror::apply_data(const Header& header, Bytes payload) {
  const std::span<std::byte> staging = link_.staging(header.rank);
  if (header.first > staging.size() || payload.size() > staging.size() - header.first) {
    fail(payload.size(), " bytes at ", header.first, " do not fit the staging memory of rank ",
         static_cast<int>(header.rank));
  }
  std::copy(payload.begin(), payload.end(),
            staging.begin() + static_cast<std::ptrdiff_t>(header.first));
}

void GroupMirror::apply_piece(const Header& header, Bytes payload) {
  const int rank = header.rank, receiver = stages_.receiver_of(rank);
  if (receiver == StageMap::kNobody || !group_.is_here(receiver)) {
    fail("rank ", rank, " hands over to nobody on ", group_.box_text(group_.box()));
  }
  const std::span<std::byte> slot = stage_slot(link_, stages_.stages, rank, header.first);
  if (payload.size() > slot.size()) {
    fail(payload.size(), " bytes do not fit a slot of the stage link, ", slot.size());
  }
  std::copy(payload.begin(), payload.end(), slot.begin());
  auto& flags = group_.shared_->rank(rank).flags;
  flags[kBytesFlags + header.first % kStageSlots].value.store(header.second,
                                                              std::memory_order_relaxed);
  flags[kSentFlag].value.store(header.first + 1, std::memory_order_seq_cst);
  // Rank 0 takes results in its main thread; the others take hidden states in their streams.
  receiver == 0 ? link_.main_bell(receiver).ring() : link_.collective_bell(receiver).ring();
}

void GroupMirror::apply_taken(const Header& header) {
  const int sender = stages_.sender_to(header.rank);
  if (sender == StageMap::kNobody || !group_.is_here(sender)) {
    fail("rank ", static_cast<int>(header.rank), " takes from nobody on ",
         group_.box_text(group_.box()));
  }
  group_.shared_->rank(header.rank)
      .flags[kTakenFlag]
      .value.store(header.first, std::memory_order_seq_cst);
  link_.collective_bell(sender).ring();
}

void GroupMirror::apply_record(int rank, Bytes payload) {
  ArchiveReader reader(payload);
  const auto message = reader.get<RecordMessage>();
  reader.finish();
  ProcessRecord& record = group_.shared_->record(rank);
  const std::int64_t now = now_ns();
  record.pid.store(message.pid);
  record.phase.store(message.phase);
  record.step.store(message.step);
  record.progress.store(message.progress);
  record.heartbeat_ns.store(now - message.heartbeat_age);
  record.call.write(message.call_number, now - message.call_age, message.call);
  record.collective.write(message.collective_number, now - message.collective_age,
                          message.collective);
  record.waits_for.store(message.waits_for - RankSnapshot::kNobody);
  record.error_text.write(1, now, message.error_text);
  group_.note_worker(rank, message.wait_status, message.stopped_by);
}

void GroupMirror::ring_main_bells() {
  for (int rank = first_; rank < end_; ++rank) link_.main_bell(rank).ring();
}

void GroupMirror::ring_collective_bells() {
  for (int rank = first_; rank < end_; ++rank) link_.collective_bell(rank).ring();
}

}  // namespace nvllm::ipc
