#include "ipc/collective/cuda_wait.h"

#include "base/error.h"
#include "ipc/collective/culprit.h"
#include "ipc/wait_clock.h"

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

}  // namespace

void wait_for_stream(Stream& stream, Member& member, std::span<Transport* const> transports,
                     Nanoseconds limit) {
  WaitClock clock(limit, now_ns());
  bool done = false;
  while (!done) {
    done = stream.synchronize_for(kLookEvery);
    clock.look(now_ns());
    try {
      if (!done) member.check_abort();  // its reason tells more than what follows from it
      for (Transport* transport : transports) transport->check();
      if (!done && clock.expired()) fail_timed_out(member, limit);
    } catch (const Error& error) {
      member.group().abort(error.what());  // the first reason counts
      for (Transport* transport : transports) transport->give_up();
      try {
        stream.synchronize_for(kLastChance);
      } catch (const Error&) {  // the first error is the one to tell
      }
      throw;
    }
  }
  for (Transport* transport : transports) transport->finished();
}

}  // namespace nvllm::ipc
