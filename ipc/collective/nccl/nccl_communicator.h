// The NCCL Communicator: for GPUs without access to each other's memory, such as those of several
// boxes, and as a baseline.
#pragma once

#include <string>
#include <string_view>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/nccl/nccl_comm.h"

namespace nvllm::ipc {

class NcclCommunicator final : public CudaCommunicator {
 public:
  // A collective call of all stages, which starts NCCL within each. Throws on all ranks if one of
  // them cannot load NCCL.
  NcclCommunicator(Member& member, Backend& backend, int stages);

  std::string name() const override { return "nccl"; }
  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;

 private:
  void check() override { comm_.check(); }
  void give_up() override { comm_.give_up(); }
  void begin(std::string_view text);

  Buffer token_;  // the operand of barriers
  NcclComm comm_;
};

}  // namespace nvllm::ipc
