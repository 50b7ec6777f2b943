// The Communicator of NCCL: for GPUs that do not see each other's memory, and to compare with.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "ipc/collective/arguments.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/cuda_wait.h"

namespace nvllm::ipc {

// Used by one thread at a time. It must outlive its work and the graphs captured with it.
class NcclCommunicator final : public Communicator, public Transport {
 public:
  // A collective call that starts NCCL. Throws, on all ranks, if NCCL cannot be loaded on one of
  // them.
  NcclCommunicator(Member& member, Backend& backend);
  ~NcclCommunicator() override;

  int rank() const override { return site_.rank; }
  int size() const override { return site_.size; }
  std::string name() const override { return "nccl"; }

  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;
  void wait(Stream& stream) override;
  void wait(const Event& event) override;
  void abort(const std::string& reason) override;

  void check() override;
  void give_up() override;
  void finished() override { last_.end(); }

 private:
  void start(const ncclUniqueId& id);
  void begin(std::string_view text);
  // NCCL's calls do not block; this waits until one that is under way has enqueued its work.
  void finish(ncclResult_t result, const char* what);
  void finish(ncclResult_t result, const char* what, Nanoseconds limit);
  [[noreturn]] void fail_nccl(ncclResult_t result, const char* what) const;

  Member& member_;
  Backend& backend_;
  const CallSite site_;
  LastCollective last_;
  Buffer token_;  // what barrier() sums up
  ncclComm_t comm_ = nullptr;
};

}  // namespace nvllm::ipc
