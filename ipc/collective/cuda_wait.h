// Waiting for a GPU's stream without trusting the peers.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "device/backend.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// The rank that most likely holds up the group, out of the ranks' records: one that has ended; one
// that shows no sign of life while this rank does; one that has started fewer collectives than the
// rest; else the suspect (kNobody: the lowest other rank).
int find_culprit(const Group& group, int self, int suspect = RankSnapshot::kNobody);

// What can keep a stream from ever ending: collectives in flight.
class Transport {
 public:
  virtual ~Transport() = default;
  // Throws if a collective has failed.
  virtual void check() = 0;
  // Makes collectives in flight end soon, without results. No later one may start.
  virtual void give_up() = 0;
  // All collectives in flight have ended well.
  virtual void finished() = 0;
};

// Until the stream's work is done. If a transport fails, the group is aborted, or `limit` has
// passed: aborts the group, ends what is in flight and throws an Error that names the culprit.
void wait_for_stream(Stream& stream, Member& member, std::span<Transport* const> transports,
                     Nanoseconds limit);

// The same until an event is reached; collectives behind it are still in flight.
void wait_for_event(const Event& event, Member& member, std::span<Transport* const> transports,
                    Nanoseconds limit);

// This rank's record of the collective that was enqueued last, until somebody has waited for it.
class LastCollective {
 public:
  explicit LastCollective(Member& member) : member_(member) {}
  void begin(std::string_view text) { doing_.emplace(member_, Member::Activity::collective, text); }
  void end() { doing_.reset(); }

 private:
  Member& member_;
  std::optional<Member::ActivityScope> doing_;
};

}  // namespace nvllm::ipc
