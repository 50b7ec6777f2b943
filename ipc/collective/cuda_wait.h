// CudaCommunicator: what the communicators of GPUs (nccl, peer) have in common. They wait for a
// stream without trusting the peers: a rank that has died or hangs must not make the others wait
// for ever.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "device/backend.h"
#include "ipc/collective/arguments.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Work on this rank's GPU that waits for other ranks, and is no collective: a StageLink's.
class CudaWork {
 public:
  virtual ~CudaWork() = default;
  // Throws if it has failed.
  virtual void check() = 0;
  // Makes what is in flight end soon, without results. No later work may start.
  virtual void give_up() = 0;
};

// Used by one thread at a time. It must outlive its work and the graphs captured with it.
class CudaCommunicator : public Communicator {
 public:
  int rank() const final { return site_.rank; }
  int size() const final { return site_.size; }
  void wait(Stream& stream) final;
  void wait(const Event& event) final;
  void abort(const std::string& reason) final;

  // What the waits look at, and end with their own, from now on; nullptr: nothing.
  void set_beside(CudaWork* work) { beside_ = work; }
  // Makes all work in flight end soon, without results, the collectives' and what is beside.
  void give_up_all();

 protected:
  // Of the ranks of this rank's stage, of so many.
  CudaCommunicator(Member& member, Backend& backend, int stages)
      : member_(member),
        backend_(backend),
        stages_(stages),
        site_{member.rank() % (member.size() / stages), member.size() / stages, DeviceKind::cuda},
        first_(member.rank() - site_.rank) {}

  // Throws if a collective has failed.
  virtual void check() = 0;
  // Makes collectives in flight end soon, without results. No later one may start.
  virtual void give_up() = 0;
  // How long wait() waits for a peer.
  virtual Nanoseconds wait_limit() const { return member_.group().step_timeout(); }

  // Notes in this rank's record which collective it enqueues, until somebody has waited for it.
  void note_collective(std::string_view text) {
    last_.emplace(member_, Member::Activity::collective, text);
  }

  Member& member_;
  Backend& backend_;
  const int stages_;
  const CallSite site_;  // within the stage
  const int first_;      // rank of the stage

 private:
  // done_within(limit): whether what is waited for has come, waiting so long at most. If a
  // collective fails, the group is aborted, or wait_limit() has passed: aborts the group, ends what
  // is in flight and throws an Error that names the culprit.
  template <typename DoneWithin>
  void wait_for(const DoneWithin& done_within);

  CudaWork* beside_ = nullptr;
  std::optional<Member::ActivityScope> last_;  // the collective that was enqueued last
};

}  // namespace nvllm::ipc
