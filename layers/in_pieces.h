// A communicator for tests that sums up what was sent ahead, as it was when it was sent: rows that were not yet
// computed then, or were not sent, are missing in the sums.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "device/backend.h"
#include "ipc/collective/communicator.h"

namespace nvllm::layers {

class InPieces final : public ipc::Communicator {
 public:
  // rows: of a piece. `sent`: where they are kept, filled with what no layer gives.
  InPieces(ipc::Communicator& whole, Backend& backend, std::int64_t rows, TensorView sent)
      : whole_(whole), backend_(backend), rows_(rows), sent_(sent) {}

  int rank() const override { return whole_.rank(); }
  int size() const override { return whole_.size(); }
  std::string name() const override { return whole_.name(); }

  std::int64_t rows_ahead(const TensorView& /*x*/, Stream& /*stream*/) const override {
    return rows_;
  }
  void send_ahead(const TensorView& x, std::int64_t first_row, Stream& stream) override {
    const TensorView piece = x.rows(first_row, std::min(rows_, x.shape[0] - first_row));
    const TensorView copy(sent_.data, x.dtype, {x.shape[0], x.shape[1]});
    REQUIRE(copy.bytes() <= sent_.bytes());
    backend_.copy(copy.rows(first_row, 1).data, piece.data, piece.bytes(), stream);
    ++pieces_;
  }
  void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) override {
    kernels::RmsNorm of_sent = args;
    of_sent.x.data = sent_.data;
    CHECK(pieces_ == (args.x.shape[0] + rows_ - 1) / rows_);
    whole_.all_reduce_rms_norm(of_sent, stream);
    backend_.fill(sent_.data, 0x7b, sent_.bytes(), stream);
    pieces_ = 0;
  }

  void all_reduce(TensorView data, Stream& stream) override { whole_.all_reduce(data, stream); }
  void reduce_scatter(TensorView out, TensorView in, Stream& stream) override {
    whole_.reduce_scatter(out, in, stream);
  }
  void all_gather(TensorView out, TensorView in, Stream& stream) override {
    whole_.all_gather(out, in, stream);
  }
  void gather(TensorView out, TensorView in, int root, Stream& stream) override {
    whole_.gather(out, in, root, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) override {
    whole_.broadcast(data, root, stream);
  }
  void barrier(Stream& stream) override { whole_.barrier(stream); }
  void wait(Stream& stream) override { whole_.wait(stream); }
  void wait(const Event& event) override { whole_.wait(event); }
  void abort(const std::string& reason) override { whole_.abort(reason); }

 private:
  ipc::Communicator& whole_;
  Backend& backend_;
  const std::int64_t rows_;
  const TensorView sent_;
  std::int64_t pieces_ = 0;
};

}  // namespace nvllm::layers
