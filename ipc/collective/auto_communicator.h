// Peer memory and NCCL together: each call goes where the table (choice.h) sends it.
#pragma once

#include <memory>
#include <string>

#include "ipc/collective/choice.h"
#include "ipc/collective/nccl_communicator.h"
#include "ipc/collective/peer_communicator.h"

namespace nvllm::ipc {

// Used by one thread at a time.
class AutoCommunicator final : public Communicator {
 public:
  AutoCommunicator(Member& member, std::unique_ptr<PeerCommunicator> peer,
                   std::unique_ptr<NcclCommunicator> nccl);

  int rank() const override { return peer_->rank(); }
  int size() const override { return peer_->size(); }
  std::string name() const override { return "peer+nccl"; }

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

 private:
  Communicator& chosen(Collective collective, std::size_t bytes);

  Member& member_;
  const std::unique_ptr<PeerCommunicator> peer_;
  const std::unique_ptr<NcclCommunicator> nccl_;
};

}  // namespace nvllm::ipc
