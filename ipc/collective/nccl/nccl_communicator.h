// The Communicator of NCCL: for GPUs that do not see each other's memory, and to compare with.
#pragma once

#include <nccl.h>

#include <string>

#include "ipc/collective/cuda_wait.h"

namespace nvllm::ipc {

class NcclCommunicator final : public CudaCommunicator {
 public:
  // A collective call, of all stages, that starts NCCL within each. Throws, on all ranks, if NCCL
  // cannot be loaded on one of them.
  NcclCommunicator(Member& member, Backend& backend, int stages);
  ~NcclCommunicator() override;

  std::string name() const override { return "nccl"; }
  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;

 private:
  void check() override;
  void give_up() override;
  void start(const ncclUniqueId& id);
  void begin(std::string_view text);
  // NCCL's calls do not block; this waits until one that is under way has enqueued its work.
  void finish(ncclResult_t result, const char* what);
  void finish(ncclResult_t result, const char* what, Nanoseconds limit);
  [[noreturn]] void fail_nccl(ncclResult_t result, const char* what) const;

  Buffer token_;  // what barrier() sums up
  ncclComm_t comm_ = nullptr;
};

}  // namespace nvllm::ipc
