// NcclComm: a communicator of NCCL among some of a group's ranks, whose calls never wait longer
// than the group's deadlines. The collectives and the stage link are made with it.
#pragma once

#include <nccl.h>

#include <thread>

#include "base/clock.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread at a time.
class NcclComm {
 public:
  // Which ranks of the group are in it: `size` of them from rank `first` on.
  struct Ranks {
    int first = 0;
    int size = 1;
  };

  // A collective call of all ranks of the group, each of which is in one communicator. stages: of
  // the pipeline, to find out who is late. Throws, on all ranks, if NCCL cannot be loaded on one of
  // them.
  NcclComm(Member& member, const Ranks& ranks, int stages);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }
  // NCCL's calls do not block; this waits until one that is under way, of which `result` came back,
  // has enqueued its work. An Error as of all waits for peers.
  void finish(ncclResult_t result, const char* what);
  // Throws if a call has failed, or after give_up().
  void check();
  // Makes what is in flight end soon, without results. Returns at once, as another communicator
  // whose work the GPU waits for may have to give up, too, before this one's memory can be freed.
  void give_up();

 private:
  void start(const ncclUniqueId& id, const Ranks& ranks);
  void finish(ncclResult_t result, const char* what, Nanoseconds limit);
  [[noreturn]] void fail_nccl(ncclResult_t result, const char* what) const;

  Member& member_;
  const int stages_;
  ncclComm_t comm_ = nullptr;
  std::jthread ending_;  // frees it, after give_up()
};

}  // namespace nvllm::ipc
