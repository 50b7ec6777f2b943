// The layout of a group's segment, and how a process accesses it. Internal to group.cc and
// member.cc. The segment contains only lock-free atomics, and plain bytes that these publish, so a
// process that dies cannot leave it locked.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "ipc/doorbell.h"
#include "ipc/group.h"
#include "ipc/ring_layout.h"
#include "ipc/segment.h"
#include "ipc/text_cell.h"

namespace nvllm::ipc {

// The index of a process: 0 for the launcher, rank + 1 for a rank, kMaxRanks + 1 for the link.
inline constexpr std::size_t record_index(int rank) {
  return static_cast<std::size_t>(rank + 1);
}

struct alignas(64) ProcessRecord {
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint64_t> step;
  std::atomic<std::uint64_t> progress;
  std::atomic<std::int64_t> heartbeat_ns;
  std::atomic<std::int32_t> waits_for;    // + 2, so that zeroed memory means RankSnapshot::kNobody
  std::atomic<std::int32_t> wait_status;  // - kRunning, for the same reason
  std::atomic<std::int32_t> stopped_by;
  ActivityCell call;
  ActivityCell collective;
  TextCell<512> error_text;
};

// The sleeping words of a process's two doorbells, each in its own cache line.
struct ProcessBells {
  struct alignas(64) Line {
    Doorbell::Word sleeping;
  };
  Line main;
  Line collective;
};

// A process that aborts the group takes a ticket, writes its reason into that slot and tries to set
// `aborted` to the slot's number + 1. Exactly one of them succeeds, with a complete reason, even if
// another one dies midway.
struct AbortState {
  static constexpr std::uint32_t kReasons = 16;
  struct Reason {
    std::uint32_t length;
    std::array<char, 508> text;
  };
  alignas(64) std::atomic<std::uint32_t> aborted;
  alignas(64) std::atomic<std::uint32_t> tickets;
  std::array<Reason, kReasons> reasons;
  std::array<std::atomic<std::int32_t>, kReasons> boxes;  // - Group::kThisBox, of each reason
};

// A rank's part in Member::exchange. Two blobs, used alternately: a rank reaches round r + 2 only
// after all have published round r + 1, hence after all have read round r.
struct alignas(64) ExchangeBox {
  std::atomic<std::uint64_t> published;  // rounds
  struct Blob {
    std::uint64_t bytes;
    std::array<std::byte, Member::kExchangeBytes> data;
  };
  std::array<Blob, 2> blobs;
};

struct RankMemory {
  ExchangeBox exchange;
  std::array<Member::Flag, Member::kFlags> flags;
};

struct GroupMemory {
  std::int32_t size;
  std::int32_t cores;  // available to the launcher when it created the group
  std::int64_t step_timeout_ns;
  std::uint64_t staging_bytes;
  std::int32_t boxes;
  std::int32_t box;
  std::array<std::int32_t, kMaxRanks + 1> first_ranks;  // of each box, followed by the number of
                                                        // ranks
  std::array<TextCell<64>, kMaxRanks> box_names;
  AbortState abort;
  alignas(64) std::atomic<std::uint32_t> stop_wanted;
  std::atomic<std::uint32_t> told;
  std::array<ProcessRecord, kMaxRanks + 2> records;
  std::array<ProcessBells, kMaxRanks + 2> bells;
  std::array<RankMemory, kMaxRanks> ranks;
};

// Offsets of the segment's parts: GroupMemory, then the rings, then the staging memory of each
// rank, each on pages of its own.
struct GroupLayout {
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
  }

  std::size_t channels = round_up(sizeof(GroupMemory));
  std::size_t staging = 0;
  std::size_t staging_stride = 0;
  std::size_t bytes = 0;

  explicit GroupLayout(const GroupOptions& options) {
    staging = channels + round_up(ChannelsLayout(options.size).bytes);
    staging_stride = round_up(options.staging_bytes);
    bytes = staging + static_cast<std::size_t>(options.size) * staging_stride;
  }
};

// A process's access to that memory, shared by its members.
struct Group::Shared {
  Segment segment;
  GroupLayout layout;
  std::vector<Doorbell> main_bells;        // of the launcher and the ranks on this box
  std::vector<Doorbell> collective_bells;  // likewise
  std::optional<Doorbell> link_bell;       // if there are several boxes

  explicit Shared(const GroupOptions& options);

  Doorbell& bell(std::vector<Doorbell>& bells, int rank) {
    if (rank == kLauncher) return bells.front();
    const GroupMemory& group = memory();
    const int first = group.first_ranks[static_cast<std::size_t>(group.box)];
    const auto index = static_cast<std::size_t>(rank - first + 1);
    return rank >= first && index < bells.size() ? bells[index] : *link_bell;
  }

  GroupMemory& memory() const { return *reinterpret_cast<GroupMemory*>(segment.payload().data()); }
  ProcessRecord& record(int rank) const { return memory().records[record_index(rank)]; }
  RankMemory& rank(int rank) const { return memory().ranks[static_cast<std::size_t>(rank)]; }

  void check_rank(int rank, int lowest) const {
    const bool link = rank == kLink && memory().boxes > 1;
    NVLLM_CHECK((rank >= lowest && rank < memory().size) || link, "rank ", rank, " of ",
                memory().size);
  }

  std::uint32_t aborted() const { return memory().abort.aborted.load(std::memory_order_seq_cst); }

  std::string abort_reason() const {
    const std::uint32_t slot = aborted();
    if (slot == 0) return "";
    const AbortState::Reason& reason = memory().abort.reasons[slot - 1];
    return {reason.text.data(), std::min<std::size_t>(reason.length, reason.text.size())};
  }

  void check_abort() const {
    if (aborted() != 0) [[unlikely]]
      throw GroupAborted(abort_reason());
  }
};

// The segment's kind in its header.
inline constexpr const char* kGroupKind = "group";

inline std::string name_of_rank(int rank) {
  if (rank == kLink) return "the link to other boxes";
  return rank == kLauncher ? "launcher" : str("rank ", rank);
}

}  // namespace nvllm::ipc
