// The StageLink of GPUs without access to each other's memory, such as those of several boxes:
// hidden states are sent from GPU to GPU by NCCL, results through shared memory and its mirror, as
// on CPUs.
#pragma once

#include <memory>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/nccl/nccl_comm.h"
#include "ipc/collective/shm/shm_stage_link.h"
#include "ipc/collective/stage_link.h"

namespace nvllm::ipc {

// NCCL buffers at most a few MiB and does not check sizes: a stage waits for the next one sooner
// than with peer memory, and stages that disagree on a size end by a deadline.
class NcclStageLink final : public StageLink, public CudaWork {
 public:
  // A collective call. The communicator reports failures on the device; it must outlive the link.
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
  // Connects to the neighbours, so that connection errors occur now, and not in a step or capture.
  void connect();

  Member& member_;
  Backend& backend_;
  CudaCommunicator& communicator_;
  const int next_, previous_;  // ranks in the neighbouring stages; StageMap::kNobody: none
  ShmStageLink results_;
  NcclComm comm_;  // between all ranks
};

}  // namespace nvllm::ipc
