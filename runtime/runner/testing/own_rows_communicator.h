// OwnRowsCommunicator: overlapped sums on any backend that behave as on GPUs with peer memory: a
// part is sent in its state at the first call, the residual is up to date only in rows that the
// rank owns, and results are in separate memory. Code that relies on more than Communicator
// promises reads values that no layer produces.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "device/backend.h"
#include "ipc/collective/testing/forwarding_communicator.h"

namespace nvllm::runtime {

class OwnRowsCommunicator final : public ipc::ForwardingCommunicator {
 public:
  OwnRowsCommunicator(std::unique_ptr<ipc::Communicator> whole, Backend& backend)
      : ForwardingCommunicator(std::move(whole)), backend_(backend) {}

  int sums() const { return sums_; }  // number of overlapped sums so far

  void begin_reduce_scatter(ipc::OverlappedRows rows, TensorView x, Stream& stream) override;
  void begin_all_gather(ipc::OverlappedRows rows, const kernels::RmsNorm& args,
                        ipc::Gathered gathered, Stream& stream) override;
  TensorView finish_all_gather(ipc::OverlappedRows rows, Stream& stream) override;
  bool open_overlap(std::int64_t slot_rows, std::int64_t columns, DType dtype) override;

 private:
  // The rows of a slot, in this communicator's memory.
  TensorView in(const Buffer& memory, ipc::OverlappedRows rows, const TensorView& like) const;

  Backend& backend_;
  // [rows of both slots, columns] each.
  Buffer sent_, sums_of_rows_, results_;
  std::array<TensorView, ipc::OverlappedRows::kSlots> under_way_;
  int sums_ = 0;
};

}  // namespace nvllm::runtime
