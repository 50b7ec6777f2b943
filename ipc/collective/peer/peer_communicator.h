// The Communicator of GPUs that see each other's memory: kernels that write into the peers' receive
// memory, mapped through CUDA IPC (peer_protocol.cuh).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "ipc/collective/arguments.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/peer/algorithm.h"
#include "ipc/collective/peer/peer_kernels.h"

namespace nvllm::ipc {

// Used by one thread at a time. It must outlive its work and the graphs captured with it.
class PeerCommunicator final : public Communicator, public Transport {
 public:
  // A collective call. nullptr on all ranks if one of them cannot; `why` then says which and why.
  static std::unique_ptr<PeerCommunicator> create(Member& member, Backend& backend,
                                                  std::string& why);
  ~PeerCommunicator() override;

  int rank() const override { return site_.rank; }
  int size() const override { return site_.size; }
  std::string name() const override { return "peer"; }

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

  // For measurements: this algorithm for all sizes, instead of what the table says.
  void force(std::optional<Algorithm> algorithm) { forced_ = algorithm; }

  // A wait for a collective must last longer than the deadline of the kernels, which know better.
  static Nanoseconds wait_limit(const Group& group);

 private:
  PeerCommunicator(Member& member, Backend& backend);
  void open_peers(std::string& why);

  Algorithm algorithm(Collective collective, std::size_t bytes) const;
  // The links for a kernel of that operation. Throws if the communicator cannot be used any more.
  peer::Links begin(peer::Operation operation, std::string_view text);
  // False, and nothing done: not for this shape.
  bool two_shot_rms_norm(const peer::Links& links, const kernels::RmsNorm& args, Stream& stream);
  void exchange(peer::Operation operation, const TensorView& text_of, void* out, const void* in,
                std::size_t bytes, int root, Stream& stream);

  Member& member_;
  Backend& backend_;
  const CallSite site_;
  LastCollective last_;
  std::optional<Algorithm> forced_;
  Buffer box_;                             // this rank's receive memory
  Buffer control_;                         // peer::Control
  Buffer report_;                          // peer::Report
  std::array<void*, kMaxRanks> opened_{};  // the others' receive memory
  peer::Links links_;
};

}  // namespace nvllm::ipc
