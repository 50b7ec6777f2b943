// NcclComm: an NCCL communicator among some of a group's ranks, whose calls never wait longer than
// the group's deadlines. Used by the collectives and the stage link.
#pragma once

#include <nccl.h>

#include <thread>

#include "base/clock.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread at a time.
class NcclComm {
 public:
  // The ranks of the group that it connects: `size` of them, starting at `first`, every stride-th.
  struct Ranks {
    int first = 0;
    int size = 1;
    int stride = 1;
  };

  // A collective call of all ranks of the group, each of which is in one communicator. stages: of
  // the pipeline, for finding the culprit of a timeout. Throws on all ranks if one of them cannot
  // load NCCL.
  NcclComm(Member& member, const Ranks& ranks, int stages);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }
  // NCCL's calls do not block; this waits until a pending one, which returned `result`, has
  // enqueued its work. Fails with an Error as all waits for peers do.
  void finish(ncclResult_t result, const char* what);
  // Throws if a call has failed, or after give_up().
  void check();
  // Makes work in flight end soon, without results. Returns immediately, because this
  // communicator's memory may not be freed before another one, whose work the GPU waits for, gives
  // up too.
  void give_up();

 private:
  void start(const ncclUniqueId& id, const Ranks& ranks);
  void finish(ncclResult_t result, const char* what, Nanoseconds limit);
  [[noreturn]] void fail_nccl(ncclResult_t result, const char* what) const;

  Member& member_;
  const int stages_;
  ncclComm_t comm_ = nullptr;
  std::jthread ending_;  // frees comm_ after give_up()
};

}  // namespace nvllm::ipc
