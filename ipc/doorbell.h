// Doorbell: the only way in which a process of a group sleeps until another process wakes it.
//
//   ringer                                        waiter (at most one per doorbell)
//   R1  condition.store(true, seq_cst)            W0  take away old tokens
//   R2  if (sleeping.exchange(0))                 W1  sleeping.exchange(1)
//   R3    semaphore.post()                        W2  if (condition) { sleeping.exchange(0); go on
//   }
//                                                 W3  semaphore.timed_wait(), then from W0 again
//
// No wake-up is lost. R1, R2, W1 and W2 are sequentially consistent, so they have one order that
// all processes agree on. If W2 comes after R1, the waiter sees the condition and does not sleep.
// Otherwise W1 < W2 < R1 < R2: the ringer finds sleeping = 1 and posts, unless sleeping was taken
// back in between. Only two could have reset it: another ringer, which posts instead of this one,
// or the waiter itself, which is then awake and checks the condition again before its next W3. W0
// takes only tokens that were posted before W1, and W2 checks the conditions that they announced.
// So a waiter in W3 with a true condition always gets a token. ipc/doorbell_model_test.cc explores
// all interleavings of these steps.
//
// Stale tokens are bounded. A token is posted only by the process that changed sleeping from 1 to
// 0, and only W1 makes it 1 again, so there is at most one per pass of the waiter; W0 takes away
// all that have arrived. What can still come late is one token for each ringer that was interrupted
// between R2 and R3. A stale token costs one more check of the condition.
//
// A ringer that is killed between R2 and R3 posts nothing: the waiter then wakes at the end of its
// slice of sleep (Member::wait sleeps at most 200 ms at a time).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"

namespace nvllm::ipc {

// Created before fork(), and inherited by the children. Any process and thread may call ring().
class Doorbell {
 public:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free);

  // `sleeping` is in shared memory, initially zero, and alone in its cache line. The constructor
  // creates the semaphore and removes its name immediately.
  explicit Doorbell(Word& sleeping);
  Doorbell(Doorbell&&) noexcept;
  Doorbell& operator=(Doorbell&&) noexcept;
  ~Doorbell();

  // Wakes the waiter if it sleeps. The condition must already have been made true by a sequentially
  // consistent store. The load before the exchange avoids a write to the cache line in the common
  // case that the waiter does not sleep; it is then R2 of the argument above.
  void ring() {
    if (sleeping_->load(std::memory_order_seq_cst) != 0 &&
        sleeping_->exchange(0, std::memory_order_seq_cst) != 0) {
      post();
    }
  }

  // One pass of the waiter: W0 and W1, then the caller's W2, then sleep() or the destructor.
  class Sleeper {
   public:
    explicit Sleeper(Doorbell& bell);
    ~Sleeper() { bell_.sleeping_->exchange(0, std::memory_order_seq_cst); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

    // Sleeps until the bell rings, at most `limit`; may also return early.
    void sleep(Nanoseconds limit);

   private:
    Doorbell& bell_;
  };

 private:
  struct Semaphore;
  void post();

  Word* sleeping_;
  std::unique_ptr<Semaphore> semaphore_;
};

}  // namespace nvllm::ipc
