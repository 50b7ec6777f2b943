#include "ipc/heartbeat.h"

#include <algorithm>

#include "base/thread.h"

namespace nvllm::ipc {

Heartbeat::Heartbeat(Member& member)
    : thread_(start_thread("of the heartbeat", [this, &member] { run(member); })) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_wanted_.notify_one();
  thread_.join();
}

Nanoseconds Heartbeat::interval(Nanoseconds step_timeout) {
  return std::clamp<Nanoseconds>(step_timeout / 8, std::chrono::milliseconds(20),
                                 std::chrono::milliseconds(500));
}

void Heartbeat::run(Member& member) {
  const Nanoseconds pause = interval(member.group().step_timeout());
  std::unique_lock lock(mutex_);
  while (!stop_) {
    member.beat();
    // Sleepers look at their deadline after a slice of the wall clock (doorbell.cc). If somebody
    // has set that clock back, they look now.
    member.main_bell(member.rank()).ring();
    member.collective_bell(member.rank()).ring();
    stop_wanted_.wait_for(lock, pause, [this] { return stop_; });
  }
}

}  // namespace nvllm::ipc
