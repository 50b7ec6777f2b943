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

// The rank that most likely holds up the group, out of the ranks' records: one that has ended; one
// that shows no sign of life while this rank does; one that has started fewer collectives than the
// rest; else the suspect (kNobody: the lowest other rank).
int find_culprit(const Group& group, int self, int suspect = RankSnapshot::kNobody);

// Used by one thread at a time. It must outlive its work and the graphs captured with it.
class CudaCommunicator : public Communicator {
 public:
  int rank() const final { return site_.rank; }
  int size() const final { return site_.size; }
  void wait(Stream& stream) final;
  void wait(const Event& event) final;
  void abort(const std::string& reason) final;

 protected:
  CudaCommunicator(Member& member, Backend& backend)
      : member_(member), backend_(backend), site_{member.rank(), member.size(), DeviceKind::cuda} {}

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
  const CallSite site_;

 private:
  // done_within(limit): whether what is waited for has come, waiting so long at most. If a
  // collective fails, the group is aborted, or wait_limit() has passed: aborts the group, ends what
  // is in flight and throws an Error that names the culprit.
  template <typename DoneWithin>
  void wait_for(const DoneWithin& done_within);

  std::optional<Member::ActivityScope> last_;  // the collective that was enqueued last
};

}  // namespace nvllm::ipc
