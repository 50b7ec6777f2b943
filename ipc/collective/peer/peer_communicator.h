// The Communicator of GPUs that access each other's memory: its kernels write to the peers' receive
// memory, mapped through CUDA IPC (peer_protocol.cuh).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "ipc/collective/cuda_wait.h"
#include "ipc/collective/peer/algorithm.h"
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/row_exchange.h"

namespace nvllm::ipc {

class PeerCommunicator final : public CudaCommunicator {
 public:
  // A collective call of all stages. nullptr on all ranks if one of them fails; `why` then says
  // which and why. parts: see CudaCommunicator.
  static std::unique_ptr<PeerCommunicator> create(Member& member, Backend& backend, int stages,
                                                  int parts, std::string& why);
  ~PeerCommunicator() override;

  std::string name() const override { return "peer"; }
  void all_reduce(TensorView data, Stream& stream) override;
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override;
  void all_gather(TensorView out, TensorView in, Stream& stream) override;
  void gather(TensorView out, TensorView in, int root, Stream& stream) override;
  void broadcast(TensorView data, int root, Stream& stream) override;
  void barrier(Stream& stream) override;
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override;

  void begin_reduce_scatter(OverlappedRows rows, TensorView x, Stream& stream) override;
  void begin_all_gather(OverlappedRows rows, const kernels::RmsNorm& args, Gathered gathered,
                        Stream& stream) override;
  TensorView finish_all_gather(OverlappedRows rows, Stream& stream) override;
  bool open_overlap(std::int64_t slot_rows, std::int64_t columns, DType dtype) override;

  void check() override;
  void give_up() override;
  // Longer than the deadline of the kernels, which know better which peer they wait for.
  Nanoseconds wait_limit() const override;

  // For measurements: uses this algorithm for all sizes, instead of the table.
  void force(std::optional<Algorithm> algorithm) { forced_ = algorithm; }

 private:
  PeerCommunicator(Member& member, Backend& backend, int stages, int parts)
      : CudaCommunicator(member, backend, stages, parts) {}
  void open_peers(std::string& why);

  Algorithm algorithm(Collective collective, std::size_t bytes) const;
  // The arguments of a kernel for that operation. Throws if the communicator has failed.
  peer::Links begin(peer::Operation operation, std::string_view text);
  // False, without doing anything, if this shape is not supported.
  bool two_shot_rms_norm(const peer::Links& links, const kernels::RmsNorm& args, Stream& stream);
  void exchange(peer::Operation operation, const TensorView& text_of, void* out, const void* in,
                std::size_t bytes, int root, Stream& stream);

  std::optional<Algorithm> forced_;
  Buffer box_;                             // this rank's receive memory
  Buffer control_;                         // peer::Control
  Buffer report_;                          // peer::Report
  std::array<void*, kMaxRanks> opened_{};  // the other ranks' receive memory
  peer::Links links_;
  std::unique_ptr<RowExchange> rows_;  // of overlapped sums; nullptr: not opened
};

}  // namespace nvllm::ipc
