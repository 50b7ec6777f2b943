#include "ipc/collective/cuda_wait.h"

#include <sched.h>

#include <vector>

#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc {
namespace {

constexpr Nanoseconds kLookEvery = std::chrono::milliseconds(20);
// For kernels that were told to give up.
constexpr Nanoseconds kLastChance = std::chrono::seconds(2);

[[noreturn]] void fail_timed_out(const Member& member, Nanoseconds limit) {
  const int peer = find_culprit(member.group(), member.rank());
  throw PeerTimeout(peer,
                    str("waited ", format_duration(std::chrono::duration<double>(limit).count()),
                        " for a collective with ", member.group().snapshot(peer).describe()));
}

// Polls: what is waited for is mostly about to come, and an event cannot be waited for with a
// limit.
bool reached_within(const Event& event, Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (!event.reached()) {
    if (now_ns() >= end) return false;
    sched_yield();
  }
  return true;
}

// done_within(limit): whether what is waited for has come, waiting so long at most.
template <typename DoneWithin>
void wait_for(const DoneWithin& done_within, Member& member, std::span<Transport* const> transports,
              Nanoseconds limit) {
  WaitClock clock(limit, now_ns());
  std::uint64_t progress = member.progress();
  bool done = false;
  while (!done) {
    done = done_within(kLookEvery);
    clock.look(now_ns());
    if (const std::uint64_t now = member.progress(); now != progress) {
      progress = now;
      clock = WaitClock(limit, now_ns());
    }
    try {
      if (!done) member.check_abort();  // its reason tells more than what follows from it
      for (Transport* transport : transports) transport->check();
      if (!done && clock.expired()) fail_timed_out(member, limit);
    } catch (const Error& error) {
      member.group().abort(error.what());  // the first reason counts
      for (Transport* transport : transports) transport->give_up();
      try {
        done_within(kLastChance);
      } catch (const Error&) {  // the first error is the one to tell
      }
      throw;
    }
  }
}

}  // namespace

int find_culprit(const Group& group, int self, int suspect) {
  constexpr std::int64_t kSilence = 2'000'000'000;  // ns; several heartbeats
  std::vector<RankSnapshot> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(group.snapshot(rank));
  const RankSnapshot& own = ranks[static_cast<std::size_t>(self)];

  for (const RankSnapshot& rank : ranks) {
    if (rank.rank != self && rank.phase == Phase::ended) return rank.rank;
  }
  for (const RankSnapshot& rank : ranks) {
    if (rank.heartbeat_ns + kSilence < own.heartbeat_ns) return rank.rank;
  }
  const RankSnapshot* slowest = &own;
  for (const RankSnapshot& rank : ranks) {
    if (rank.collective.number < slowest->collective.number) slowest = &rank;
  }
  if (slowest != &own) return slowest->rank;
  if (suspect != RankSnapshot::kNobody) return suspect;
  return self == 0 && group.size() > 1 ? 1 : 0;
}

void wait_for_stream(Stream& stream, Member& member, std::span<Transport* const> transports,
                     Nanoseconds limit) {
  wait_for([&](Nanoseconds some) { return stream.synchronize_for(some); }, member, transports,
           limit);
  for (Transport* transport : transports) transport->finished();
}

void wait_for_event(const Event& event, Member& member, std::span<Transport* const> transports,
                    Nanoseconds limit) {
  wait_for([&](Nanoseconds some) { return reached_within(event, some); }, member, transports,
           limit);
}

}  // namespace nvllm::ipc
