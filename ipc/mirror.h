// GroupMirror: carries what the ranks of a group write in shared memory from one box to the others.
//
// A group over several boxes has a segment on each of them, laid out alike, with room for all
// ranks. Every piece of it has one writer. On the writer's box it is written as ever; one process
// of each box, the link (kLink), collects what is new there and sends it, and applies what comes
// from other boxes at the same place in its own segment. So ring ends, exchange() and collectives
// work without knowing about boxes: for a rank, a rank elsewhere is a slow neighbour.
//
//   what                    from                       to
//   calls ring              rank 0's box               all others, slot by slot
//   replies rings           each rank's box            rank 0's box, slot by slot
//   exchange()              each rank's box            all others
//   steps of collectives    each rank's box            other boxes of the rank's pipeline stage,
//                                                      with the staging memory written
//   pieces of a stage link  the sender's box           the receiver's box, if another
//   pieces taken            the receiver's box         the sender's box, if another
//   records, abort, end     each box                   all others, records at the heartbeat's pace
//
// Times in records cross as ages, since clocks of boxes differ. The mirror only packs and unpacks;
// who carries the bytes must keep their order between two boxes (cluster/link_process.h). What is
// carried of collectives and stage links is told by rank_memory_map.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "ipc/group.h"
#include "ipc/rank_memory_map.h"
#include "ipc/ring.h"

namespace nvllm::ipc {

// Used by the link's one thread.
class GroupMirror {
 public:
  // What is to be sent to each box, by its number; this box's own stays empty.
  using Outboxes = std::vector<std::vector<std::byte>>;
  // collect() stops after so many bytes for a box, or a little more; there will be another call.
  static constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

  // Of a group in so many pipeline stages. The member must outlive it.
  explicit GroupMirror(Member& link, int stages = 1);

  // Whether collect() has something to do.
  bool has_output() const;
  // Appends what has been written here since the last call. The memory is free for its writers when
  // this returns.
  void collect(Outboxes& out);
  // Appends the records of the ranks that are here.
  void collect_records(Outboxes& out) const;
  // Appends that nothing more will come from this box.
  void collect_end(Outboxes& out) const;

  // Takes a batch that another box has collected. An Error if it cannot be right. False: there were
  // only records in it, the sign of life of a box that may be idle.
  bool apply(int from, Bytes batch);
  // Gives the rings what had no room when it came. True: some of it has been given.
  bool deliver();

  // Whether nothing more will come from that box.
  bool ended(int box) const { return ended_[static_cast<std::size_t>(box)]; }

 private:
  enum class Kind : std::uint8_t {
    call,
    reply,
    blob,
    data,
    step,
    piece,
    taken,
    record,
    abort,
    end
  };
  // What stands before each piece of a batch.
  struct Header {
    std::uint32_t bytes = 0;  // that follow
    Kind kind = Kind::end;
    std::uint8_t rank = 0;  // whose memory it is
    std::uint16_t unused = 0;
    std::uint64_t first = 0, second = 0;  // as the kind has it
  };

  // The link's end of a ring, slot by slot.
  struct RingEnd {
    BroadcastRing ring;
    RingMemory* memory = nullptr;
    std::uint64_t next = 0;  // the next fragment
    struct Waiting {
      std::uint64_t message_bytes = 0, offset = 0;
      std::vector<std::byte> bytes;
    };
    std::deque<Waiting> waiting;  // for room, where the link writes

    RingSlot& slot() const { return memory->slot(ring.shape, next); }
  };
  // What has been sent of a rank that is here.
  struct Sent {
    std::uint64_t blobs = 0;
    std::uint32_t step = 0;
    std::uint64_t pieces = 0, taken = 0;
  };

  RingEnd end_of(BroadcastRing ring) const;
  bool arrived(const RingEnd& end) const;
  void collect_ring(RingEnd& end, Kind kind, int rank, Outboxes& out);
  void collect_blobs(int rank, Outboxes& out);
  void collect_steps(int rank, Outboxes& out);
  void collect_data(int rank, std::uint32_t step, Outboxes& out) const;
  void collect_pieces(int rank, Outboxes& out);
  void collect_taken(int rank, Outboxes& out);
  // Whether the ranks of this one's stage are on other boxes, too; whether a rank's neighbour is on
  // one (of nobody it is not).
  bool stage_is_split(int rank) const;
  bool is_elsewhere(int rank) const { return rank != StageMap::kNobody && !group_.is_here(rank); }
  void append_for_stage(int rank, Outboxes& out, const Header& header, Bytes payload) const;
  std::uint64_t flag(int rank, std::size_t index) const;
  void append(Outboxes& out, const Header& header, Bytes payload) const;
  static void append_to(std::vector<std::byte>& out, const Header& header, Bytes payload);
  static bool full(const Outboxes& out);

  void apply_one(int from, const Header& header, Bytes payload);
  void apply_fragment(RingEnd& end, const Header& header, Bytes payload);
  void apply_blob(const Header& header, Bytes payload);
  void apply_data(const Header& header, Bytes payload);
  void apply_piece(const Header& header, Bytes payload);
  void apply_taken(const Header& header);
  void apply_record(int rank, Bytes payload);
  bool deliver_to(RingEnd& end);
  bool has_room(const RingEnd& end) const;
  void ring_main_bells();
  void ring_collective_bells();

  Member& link_;
  const Group& group_;
  const StageMap stages_;
  const int first_, end_;  // the ranks that are here
  RingEnd calls_;
  std::vector<RingEnd> replies_;  // by rank - 1: read for ranks here, written for ranks elsewhere
  std::vector<Sent> sent_;        // by rank
  std::vector<bool> ended_;       // by box
  bool abort_sent_ = false;
};

}  // namespace nvllm::ipc
