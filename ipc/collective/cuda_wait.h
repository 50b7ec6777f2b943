// CudaCommunicator: shared by the communicators of GPUs (nccl, peer, two-level). Their waits do not
// depend on the peers: a rank that has died or hangs must not block the others forever.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "device/backend.h"
#include "ipc/collective/arguments.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Work on this rank's GPU that waits for other ranks: that of a communicator, or of a StageLink
// beside it.
class CudaWork {
 public:
  virtual ~CudaWork() = default;
  // Throws if the work has failed.
  virtual void check() = 0;
  // Makes work in flight end soon, without results. No later work may start.
  virtual void give_up() = 0;
};

// Used by one thread at a time. It must outlive its work and the graphs captured with it.
class CudaCommunicator : public Communicator, public CudaWork {
 public:
  int rank() const final { return site_.rank; }
  int size() const final { return site_.size; }
  void wait(Stream& stream) final;
  void wait(const Event& event) final;
  void abort(const std::string& reason) final;

  // Other work that the waits check, and end together with collectives; nullptr: none.
  void set_beside(CudaWork* work) { beside_ = work; }
  // Makes all work in flight end soon, without results: collectives and the work of set_beside().
  void give_up_all();

  // How long wait() waits for a peer.
  virtual Nanoseconds wait_limit() const { return member_.group().step_timeout(); }

 protected:
  // Connects the ranks of this rank's stage; stages: of the pipeline. If parts > 1, each stage is
  // divided into that number of equal parts, and this connects the ranks of one, for another
  // communicator, which records the calls and waits for them.
  CudaCommunicator(Member& member, Backend& backend, int stages, int parts = 1)
      : member_(member),
        backend_(backend),
        stages_(stages),
        is_part_(parts > 1),
        site_{member.rank() % (member.size() / stages / parts), member.size() / stages / parts,
              DeviceKind::cuda},
        first_(member.rank() - site_.rank) {}

  // Records the collective being enqueued in this rank's record, until it has been waited for.
  void note_collective(std::string_view text) {
    if (!is_part_) last_.emplace(member_, Member::Activity::collective, text);
  }

  Member& member_;
  Backend& backend_;
  const int stages_;
  const bool is_part_;
  const CallSite site_;  // among the connected ranks
  const int first_;      // the first of these

 private:
  // done_within(limit): whether the awaited work is done, waiting at most `limit`. If a collective
  // fails, the group is aborted, or wait_limit() has passed: aborts the group, ends work in flight
  // and throws an Error that names the culprit.
  template <typename DoneWithin>
  void wait_for(const DoneWithin& done_within);

  CudaWork* beside_ = nullptr;
  std::optional<Member::ActivityScope> last_;  // the collective that was enqueued last
};

}  // namespace nvllm::ipc
