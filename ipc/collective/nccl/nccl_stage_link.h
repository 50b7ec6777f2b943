// The StageLink of GPUs that do not see each other's memory, as those of several boxes: hidden
// states go from GPU to GPU by NCCL, results through shared memory and its mirror, as on CPUs.
#pragma once

#include <memory>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/nccl/nccl_comm.h"
#include "ipc/collective/shm/shm_stage_link.h"
#include "ipc/collective/stage_link.h"

namespace nvllm::ipc {

// NCCL has no more than a few MiB in flight, and takes whatever comes: a stage waits sooner for the
// next one than with peer memory, and stages that do not agree on a size end by a deadline.
class NcclStageLink final : public StageLink, public CudaWork {
 public:
  // A collective call. The communicator, which must outlive it, tells what fails on the device.
  static std::unique_ptr<NcclStageLink> create(Member& member, Backend& backend, int stages,
                                               CudaCommunicator& communicator);
  ~NcclStageLink() override;

  void send(TensorView data, Stream& stream) override;
  void receive(TensorView data, Stream& stream) override;
  void send_result(TensorView data, const Event& ready) override;
  void drop_results() override { results_.drop_results(); }
  void receive_result(void* to, std::size_t bytes) override;
  bool result_ready() const override { return results_.result_ready(); }

  void check() override { comm_.check(); }
  void give_up() override { comm_.give_up(); }

 private:
  NcclStageLink(Member& member, Backend& backend, int stages, CudaCommunicator& communicator);
  // Connects with the neighbours, so that what is wrong between them shows now, and no step, nor a
  // capture, has to do it.
  void connect();

  Member& member_;
  Backend& backend_;
  CudaCommunicator& communicator_;
  const int next_, previous_;  // of the neighbouring stages; StageMap::kNobody: none
  ShmStageLink results_;
  NcclComm comm_;  // of all ranks
};

}  // namespace nvllm::ipc
