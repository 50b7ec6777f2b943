// RowsAhead: of an all_reduce_rms_norm of two GPUs, the rows that travel while the next ones are still being
// computed. Copy engines write them into the other GPU's memory, in a stream of their own, and behind each piece
// the call's number; so they take no multiprocessor from the products. Then one kernel adds and norms
// (peer_rms_norm_arriving.cu), for which only the last piece may still be on its way.
//
// Why nobody overwrites rows that are not yet read: calls that came to their kernel use two areas in turn, and
// such a call is a full handshake. Rank p sends the rows of call k + 2 when its kernel of call k + 1 has ended,
// so when it has seen the last number that rank r sent for k + 1. That was behind r's products of k + 1, in
// stream order behind r's kernel of call k, and thus behind its reading of that area. Rows of which no kernel came
// to be are written over in the same area by the next ones.
#pragma once

#include <cstdint>
#include <memory>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "ipc/collective/peer_links.h"
#include "kernels/rmsnorm.h"

namespace nvllm::ipc {

class RowsAhead {
 public:
  // `links` stay where they are.
  RowsAhead(Backend& backend, const peer::Links& links);
  ~RowsAhead();

  // As Communicator has them; all rows if they are not to be sent in pieces.
  std::int64_t rows_of_piece(const TensorView& x, Stream& stream) const;
  void send(const TensorView& x, std::int64_t first_row, Stream& stream);

  // Whether all of this x is under way.
  bool sent(const TensorView& x) const;
  // Ends the call whose rows those were.
  void finish(const peer::Links& links, const kernels::RmsNorm& args, Stream& stream);
  // What was sent, if anything was, is wanted no more: x may be written again.
  void forget(Stream& stream);

  // For tests and measurements: pieces of so many rows, however few there are; 0: as choice.h says.
  void force(std::int64_t rows) { forced_ = rows; }

 private:
  std::byte* area(int rank) const;
  std::uint32_t* arrived(int rank) const;

  Backend& backend_;
  const peer::Links& links_;
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> made_, copied_;
  std::int64_t forced_ = 0;

  std::uint32_t finished_ = 0;  // calls that came to their kernel
  std::uint32_t number_ = 0;    // of the last call that sent rows
  TensorView x_;                // of this call; no data: none is under way
  std::int64_t piece_rows_ = 0;
  std::int64_t sent_rows_ = 0;
};

}  // namespace nvllm::ipc
