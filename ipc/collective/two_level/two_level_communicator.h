// The Communicator of GPUs of several boxes with several ranks on each: all_reduce adds by peer
// memory within each box, and by NCCL between boxes (algorithm.h). The other collectives are
// NCCL's, among all ranks of the stage.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ipc/collective/nccl/nccl_communicator.h"
#include "ipc/collective/peer/peer_communicator.h"
#include "ipc/collective/two_level/algorithm.h"

namespace nvllm::ipc {

class TwoLevelCommunicator final : public NcclCommunicator {
 public:
  // A collective call of all stages. ranks_of_box: of a stage, on each of its boxes
  // (two_level_ranks() in ipc/stage_boxes.h). nullptr on all ranks if one has no peer memory; `why`
  // then says which and why. Throws on all ranks if one cannot load NCCL.
  static std::unique_ptr<TwoLevelCommunicator> create(Member& member, Backend& backend, int stages,
                                                      int ranks_of_box, std::string& why);
  ~TwoLevelCommunicator() override;

  std::string name() const override { return "two-level"; }
  // With two boxes: ranks of a box in rank order, then a sum of two.
  bool order_is_fixed() const override { return boxes_ == 2; }
  void all_reduce(TensorView data, Stream& stream) override;

  // If a part has failed, all are ended: kernels of another may wait for that.
  void check() override;
  void give_up() override;
  Nanoseconds wait_limit() const override { return in_box_->wait_limit(); }

  // For tests: uses this algorithm, which must be possible, for all sizes.
  void force(std::optional<TwoLevelAlgorithm> algorithm) { forced_ = algorithm; }

 private:
  TwoLevelCommunicator(Member& member, Backend& backend, int stages,
                       std::unique_ptr<PeerCommunicator> in_box);
  TwoLevelAlgorithm algorithm(const TensorView& data) const;
  void sum_slices(TensorView data, Stream& stream);

  std::optional<TwoLevelAlgorithm> forced_;
  std::unique_ptr<PeerCommunicator> in_box_;
  const int boxes_;   // of the stage
  NcclComm between_;  // the stage's ranks with this rank's place in their boxes
};

}  // namespace nvllm::ipc
