// Doorbell: the one way in which a process of a group sleeps until another has done something.
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
// back in between. Only two can have done that: another ringer, who posts in this one's stead, or
// the waiter itself, who is then awake and looks at the condition again before its next W3. W0
// takes only tokens that were posted before W1, and W2 looks at what they announced. So a waiter in
// W3 with a true condition always has a token coming. ipc/doorbell_model_test.cc walks through all
// interleavings of these steps.
//
// Stale tokens are bounded. A token is posted only by who turned sleeping from 1 to 0, and only W1
// makes it 1 again, so there is at most one per pass of the waiter; W0 takes away all that have
// arrived. What can still come late is one token for each ringer that was interrupted between R2
// and R3. A stale token costs one more look at the condition.
//
// A ringer that is killed between R2 and R3 posts nothing: that wake-up comes with the end of the
// waiter's slice of sleep (Member::wait sleeps at most 200 ms at a time).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"

namespace nvllm::ipc {

// Made before fork(), inherited by it. ring() may be called by any process and thread.
class Doorbell {
 public:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free);

  // `sleeping` lies in shared memory, is zero at the start and alone in its cache line. The
  // semaphore is made here and its name removed at once.
  explicit Doorbell(Word& sleeping);
  Doorbell(Doorbell&&) noexcept;
  Doorbell& operator=(Doorbell&&) noexcept;
  ~Doorbell();

  // Wakes the waiter if it sleeps. The condition it waits for was made true by a sequentially
  // consistent store before. The load in front spares the line a write in the usual case that
  // nobody sleeps; it is the R2 of the argument then.
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

    // Sleeps until somebody rings, at most `limit`; may also return early.
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
