// OwnRowsCommunicator: overlapped sums on any backend as GPUs with peer memory have them: a part is
// sent as it is at the first call, the residual is up to date only in rows that the rank owns, and
// results lie in other memory. Who reads anything else than what Communicator promises gets values
// that no layer gives.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "device/backend.h"
#include "ipc/collective/communicator.h"

namespace nvllm::runtime {

class OwnRowsCommunicator final : public ipc::Communicator {
 public:
  OwnRowsCommunicator(std::unique_ptr<ipc::Communicator> whole, Backend& backend)
      : whole_(std::move(whole)), backend_(backend) {}

  int sums() const { return sums_; }  // overlapped ones, so far

  void begin_reduce_scatter(ipc::OverlappedRows rows, TensorView x, Stream& stream) override;
  void begin_all_gather(ipc::OverlappedRows rows, const kernels::RmsNorm& args,
                        ipc::Gathered gathered, Stream& stream) override;
  TensorView finish_all_gather(ipc::OverlappedRows rows, Stream& stream) override;
  bool open_overlap(std::int64_t slot_rows, std::int64_t columns, DType dtype) override;

  int rank() const override { return whole_->rank(); }
  int size() const override { return whole_->size(); }
  std::string name() const override { return whole_->name(); }
  void all_reduce(TensorView data, Stream& stream) override { whole_->all_reduce(data, stream); }
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override {
    whole_->reduce_scatter(out, in, stream);
  }
  void all_gather(TensorView out, TensorView in, Stream& stream) override {
    whole_->all_gather(out, in, stream);
  }
  void gather(TensorView out, TensorView in, int root, Stream& stream) override {
    whole_->gather(out, in, root, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) override {
    whole_->broadcast(data, root, stream);
  }
  void barrier(Stream& stream) override { whole_->barrier(stream); }
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override {
    whole_->all_reduce_rms_norm(args, stream);
  }
  void wait(Stream& stream) override { whole_->wait(stream); }
  void wait(const Event& event) override { whole_->wait(event); }
  void abort(const std::string& reason) override { whole_->abort(reason); }

 private:
  // Of the rows of a slot, in memory of this communicator.
  TensorView in(const Buffer& memory, ipc::OverlappedRows rows, const TensorView& like) const;

  std::unique_ptr<ipc::Communicator> whole_;
  Backend& backend_;
  // [rows of both slots, columns] each.
  Buffer sent_, sums_of_rows_, results_;
  std::array<TensorView, ipc::OverlappedRows::kSlots> under_way_;
  int sums_ = 0;
};

}  // namespace nvllm::runtime
