// Heartbeat: a thread that gives a member's signs of life for as long as the object exists. It also
// wakes the member's own sleepers now and then, to look at their deadlines.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ipc/group.h"

namespace nvllm::ipc {

class Heartbeat {
 public:
  // Start it after fork(): threads are not inherited. The member must outlive it, and stay in
  // place.
  explicit Heartbeat(Member& member);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // An eighth of the step timeout, but between 20 and 500 ms.
  static Nanoseconds interval(Nanoseconds step_timeout);

 private:
  void run(Member& member);

  std::mutex mutex_;
  std::condition_variable stop_wanted_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace nvllm::ipc
