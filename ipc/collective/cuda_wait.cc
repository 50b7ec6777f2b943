#include "ipc/collective/cuda_wait.h"

#include <sched.h>

#include "base/error.h"
#include "ipc/collective/culprit.h"
#include "ipc/group.h"

namespace nvllm::ipc {
namespace {

constexpr Nanoseconds kLookEvery = std::chrono::milliseconds(20);
// Time limit for kernels to end after they were asked to give up.
constexpr Nanoseconds kLastChance = std::chrono::seconds(2);

[[noreturn]] void fail_timed_out(const Member& member, int stages, Nanoseconds limit) {
  const int peer = find_culprit(member.group(), member.rank(), RankSnapshot::kNobody, stages);
  throw PeerTimeout(peer,
                    str("waited ", format_duration(std::chrono::duration<double>(limit).count()),
                        " for a collective with ", member.group().snapshot(peer).describe()));
}

// Polls, because the work usually ends soon, and CUDA cannot wait for an event with a time limit.
bool reached_within(const Event& event, Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (!event.reached()) {
    if (now_ns() >= end) return false;
    sched_yield();
  }
  return true;
}

}  // namespace

template <typename DoneWithin>
void CudaCommunicator::wait_for(const DoneWithin& done_within) {
  const Nanoseconds limit = wait_limit();
  WaitClock clock(limit, now_ns());
  std::uint64_t progress = member_.progress();
  bool done = false;
  while (!done) {
    done = done_within(kLookEvery);
    clock.look(now_ns());
    if (const std::uint64_t now = member_.progress(); now != progress) {
      progress = now;
      clock = WaitClock(limit, now_ns());
    }
    try {
      if (!done) member_.check_abort();  // its reason is more informative
      check();
      if (beside_ != nullptr) beside_->check();
      if (!done && clock.expired()) fail_timed_out(member_, stages_, limit);
    } catch (const Error& error) {
      member_.group().abort(error.what());  // only the first reason is stored
      give_up_all();
      try {
        done_within(kLastChance);
      } catch (const Error&) {  // the first error is the one to report
      }
      throw;
    }
  }
}

void CudaCommunicator::wait(Stream& stream) {
  wait_for([&](Nanoseconds limit) { return stream.synchronize_for(limit); });
  last_.reset();
}

// Collectives after the event are still in flight.
void CudaCommunicator::wait(const Event& event) {
  wait_for([&](Nanoseconds limit) { return reached_within(event, limit); });
}

void CudaCommunicator::abort(const std::string& reason) {
  member_.group().abort(reason);
  give_up_all();
}

void CudaCommunicator::give_up_all() {
  give_up();
  if (beside_ != nullptr) beside_->give_up();
}

}  // namespace nvllm::ipc
