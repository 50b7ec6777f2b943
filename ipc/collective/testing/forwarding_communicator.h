// ForwardingCommunicator: forwards all calls to another one. Tests override what should differ.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ipc/collective/communicator.h"

namespace nvllm::ipc {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> to) : to_(std::move(to)) {}

  int rank() const override { return to_->rank(); }
  int size() const override { return to_->size(); }
  std::string name() const override { return to_->name(); }
  bool order_is_fixed() const override { return to_->order_is_fixed(); }
  void all_reduce(TensorView data, Stream& stream) override { to_->all_reduce(data, stream); }
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override {
    to_->reduce_scatter(out, in, stream);
  }
  void all_gather(TensorView out, TensorView in, Stream& stream) override {
    to_->all_gather(out, in, stream);
  }
  void gather(TensorView out, TensorView in, int root, Stream& stream) override {
    to_->gather(out, in, root, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) override {
    to_->broadcast(data, root, stream);
  }
  void barrier(Stream& stream) override { to_->barrier(stream); }
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override {
    to_->all_reduce_rms_norm(args, stream);
  }
  void wait(Stream& stream) override { to_->wait(stream); }
  void wait(const Event& event) override { to_->wait(event); }
  void abort(const std::string& reason) override { to_->abort(reason); }

 private:
  std::unique_ptr<Communicator> to_;
};

}  // namespace nvllm::ipc
