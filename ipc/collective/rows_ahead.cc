#include "ipc/collective/rows_ahead.h"

#include <cuda.h>

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "base/error.h"
#include "device/cuda/stream.h"
#include "ipc/collective/choice.h"
#include "ipc/collective/peer_kernels.h"

namespace nvllm::ipc {
namespace {

// Writes a number behind the stream's work so far, for all GPUs to see in this order. The driver's function is
// found at run time: the program does not link with the driver.
void write_number(std::uint32_t* to, std::uint32_t number, Stream& stream) {
  static const auto write = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cuda::check(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000,
                                                 cudaEnableDefault, &found),
                "looking for cuStreamWriteValue32");
    return reinterpret_cast<decltype(&cuStreamWriteValue32)>(function);
  }();
  const CUresult result = write(cuda::native(stream), reinterpret_cast<CUdeviceptr>(to), number,
                                CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) fail("announcing rows to another GPU: CUresult ", result);
}

bool is_capturing(Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(cuda::native(stream), &status), "asking for a capture");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

RowsAhead::RowsAhead(Backend& backend, const peer::Links& links)
    : backend_(backend),
      links_(links),
      copies_(backend.create_stream(StreamPriority::high)),
      made_(backend.create_event()),
      copied_(backend.create_event()) {}

RowsAhead::~RowsAhead() = default;

std::byte* RowsAhead::area(int rank) const {
  return static_cast<std::byte*>(links_.boxes[rank]) + peer::kAheadAt +
         finished_ % peer::kAreas * peer::kAheadBytes;
}

std::uint32_t* RowsAhead::arrived(int rank) const {
  return reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(links_.boxes[rank]) +
                                          peer::kArrivedAt);
}

std::int64_t RowsAhead::rows_of_piece(const TensorView& x, Stream& stream) const {
  const std::int64_t rows = x.shape[0];
  if (rows == 0 || !peer::has_arriving_rms_norm(x) || x.bytes() > peer::kAheadBytes) return rows;
  const std::int64_t piece =
      forced_ != 0 ? forced_ : rows_ahead(links_.ranks, rows, x.rows(0, 1).bytes());
  if (piece == 0 || divide_up(rows, piece) > peer::kMaxPieces) return rows;
  // The number of a call is the host's, and would be the same in each replay of a graph.
  return is_capturing(stream) ? rows : std::min(piece, rows);
}

void RowsAhead::send(const TensorView& x, std::int64_t first_row, Stream& stream) {
  if (first_row == 0) {
    forget(stream);
    const std::int64_t piece = rows_of_piece(x, stream);
    if (piece >= x.shape[0]) return;
    x_ = x;
    piece_rows_ = piece;
    ++number_;
  }
  if (x_.data == nullptr) return;
  NVLLM_CHECK(x.data == x_.data && first_row == sent_rows_, "rows of ", x.describe(), " from ",
              first_row, " on are not the next ones: ", sent_rows_, " of ", x_.describe());
  const TensorView rows = x.rows(first_row, std::min(piece_rows_, x.shape[0] - first_row));
  const int peer = 1 - links_.rank;
  made_->record(stream);
  copies_->wait(*made_);
  const auto offset = static_cast<std::size_t>(rows.as<std::byte>() - x.as<std::byte>());
  backend_.copy(area(peer) + offset, rows.data, rows.bytes(), *copies_);
  write_number(arrived(peer) + first_row / piece_rows_, number_, *copies_);
  sent_rows_ += rows.shape[0];
  copied_->record(*copies_);
}

bool RowsAhead::sent(const TensorView& x) const {
  return x_.data != nullptr && x.data == x_.data && x.shape == x_.shape && x.dtype == x_.dtype &&
         sent_rows_ == x_.shape[0];
}

void RowsAhead::finish(const peer::Links& links, const kernels::RmsNorm& args, Stream& stream) {
  const bool in_place = args.out.data == args.x.data;
  if (in_place) stream.wait(*copied_);
  launch_arriving_rms_norm(links, args,
                           {.theirs = area(links.rank),
                            .arrived = arrived(links.rank),
                            .call = number_,
                            .piece_rows = static_cast<int>(piece_rows_)},
                           cuda::native(stream));
  ++finished_;
  forget(stream);
}

void RowsAhead::forget(Stream& stream) {
  if (x_.data == nullptr) return;
  stream.wait(*copied_);
  x_ = {};
  sent_rows_ = 0;
}

}  // namespace nvllm::ipc
