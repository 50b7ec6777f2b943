// GroupMirror: copies what the ranks of a group write to shared memory from one box to the others.
//
// A group over several boxes has a segment on each of them, with the same layout and memory for all
// ranks. Every part of it has one writer. The writer writes to its own box's segment as usual; one
// process of each box, the link (kLink), collects new data there and sends it, and writes data from
// other boxes to the same place in its own segment. So rings, exchange() and collectives work
// without knowing about boxes: a rank on another box just appears slow.
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
// Times in records are sent as ages, since the clocks of boxes differ. The mirror only packs and
// unpacks; the transport must keep the order of bytes between two boxes (cluster/link_process.h).
// rank_memory_map.h defines which data of collectives and stage links is copied.
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

// Used by the link's only thread.
class GroupMirror {
 public:
  // The bytes to send to each box, by its index; this box's own entry stays empty.
  using Outboxes = std::vector<std::vector<std::byte>>;
  // collect() stops after about this many bytes for a box; another call continues.
  static constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

  // stages: of the pipeline. The member must outlive it.
  explicit GroupMirror(Member& link, int stages = 1);

  // Whether collect() has something to do.
  bool has_output() const;
  // Appends what has been written on this box since the last call. The writers may reuse the memory
  // when it returns.
  void collect(Outboxes& out);
  // Appends the records of this box's ranks.
  void collect_records(Outboxes& out) const;
  // Appends that this box will send nothing more.
  void collect_end(Outboxes& out) const;

  // Applies a batch that another box has collected. An Error if it is malformed. False: it
  // contained only records, the heartbeat of a box that may be idle.
  bool apply(int from, Bytes batch);
  // Writes messages to the rings that did not fit when they arrived. True: some were written.
  bool deliver();

  // Whether that box will send nothing more.
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
  // Precedes each piece of a batch.
  struct Header {
    std::uint32_t bytes = 0;  // number of bytes that follow
    Kind kind = Kind::end;
    std::uint8_t rank = 0;  // whose memory it belongs to
    std::uint16_t unused = 0;
    std::uint64_t first = 0, second = 0;  // meaning depends on the kind
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
    std::deque<Waiting> waiting;  // messages that do not fit yet, if the link writes

    RingSlot& slot() const { return memory->slot(ring.shape, next); }
  };
  // What has been sent of a rank of this box.
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
  // Whether this rank's stage has ranks on other boxes; whether a neighbour is on another box
  // (false for nobody).
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
  const int first_, end_;  // the ranks on this box
  RingEnd calls_;
  std::vector<RingEnd> replies_;  // by rank - 1: the link reads for ranks here, and writes for
                                  // ranks elsewhere
  std::vector<Sent> sent_;        // by rank
  std::vector<bool> ended_;       // by box
  bool abort_sent_ = false;
};

}  // namespace nvllm::ipc
