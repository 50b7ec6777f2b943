// The NCCL Communicator: for GPUs without access to each other's memory, such as those of several
// boxes, and as a baseline.
#pragma once

#include <string>
#include <string_view>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/nccl/nccl_comm.h"

namespace nvllm::ipc {

class NcclCommunicator : public CudaCommunicator {
 public:
  // A collective call of all stages, which starts NCCL within each. Throws on all ranks if one of
  // them cannot load NCCL.
  NcclCommunicator(Member& member, Backend& backend, int stages);

  std::string name() const override { return "nccl"; }
  // NCCL's order of a sum of three or more depends on the size.
  bool order_is_fixed() const override { return site_.size <= 2; }
  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  // Calls all_reduce().
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;

  void check() override { comm_.check(); }
  void give_up() override { comm_.give_up(); }

 protected:
  // Before each collective: throws if the communicator has failed.
  void begin(std::string_view text);
  // data = the sum over the communicator's ranks.
  static void sum_over(NcclComm& comm, TensorView data, Stream& stream);

  Buffer token_;  // the operand of barriers

 private:
  NcclComm comm_;
};

}  // namespace nvllm::ipc
