// The StageLink of GPUs that access each other's memory: hidden states are sent from GPU to GPU by
// kernels (hand_over.h), results through shared memory, as on CPUs.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/peer/hand_over.h"
#include "ipc/collective/shm/shm_stage_link.h"
#include "ipc/collective/stage_link.h"

namespace nvllm::ipc {

// Failures on the device are reported by the next call here, and by the waits of the stage's
// communicator, which must outlive the link.
class PeerStageLink final : public StageLink, public CudaWork {
 public:
  // A collective call. nullptr on all ranks if one of them fails; `why` then says which and why.
  static std::unique_ptr<PeerStageLink> create(Member& member, Backend& backend, int stages,
                                               CudaCommunicator& communicator, std::string& why);
  ~PeerStageLink() override;

  void send(TensorView data, Stream& stream) override;
  void receive(TensorView data, Stream& stream) override;
  void send_result(TensorView data, const Event& ready) override;
  void drop_results() override { results_.drop_results(); }
  void receive_result(void* to, std::size_t bytes) override;
  // Also true if there is a failure to report.
  bool result_ready() const override { return has_failed() || results_.result_ready(); }

  void check() override;
  void give_up() override;

 private:
  PeerStageLink(Member& member, Backend& backend, int stages, CudaCommunicator& communicator);
  void open_neighbours(std::string& why);
  peer::LinkReport& report() const { return *static_cast<peer::LinkReport*>(report_.data()); }
  bool has_failed() const;

  Member& member_;
  Backend& backend_;
  CudaCommunicator& communicator_;
  const int stages_;
  const int next_, previous_;  // ranks in the neighbouring stages; StageMap::kNobody: none
  ShmStageLink results_;
  Buffer box_;                     // peer::LinkCounters and slots
  Buffer control_;                 // peer::LinkControl
  Buffer report_;                  // peer::LinkReport
  std::array<void*, 2> opened_{};  // the boxes of the next and the previous stage
  peer::LinkMemory link_;
};

}  // namespace nvllm::ipc
