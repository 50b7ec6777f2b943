// PieceReader: reads and converts the pieces of a plan.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "model/loading/load_plan.h"

namespace nvllm::model {
namespace {

using layers::Range;

// Rows are converted in runs of about this size, which stay in a core's cache.
constexpr std::uint64_t kRunBytes = 512 << 10;

// Shorter gaps between parts of rows are read too: the system fetches whole pages.
constexpr std::uint64_t kPage = 4096;

bool in_one_run(const StoredRows& stored) {
  return stored.as_is && stored.period == 1 && stored.stride == stored.part;
}

// The end of the run of rows, from `begin` on, that is read at once.
std::int64_t run_end(const LoadPiece& piece, const StoredRows& stored, std::int64_t begin) {
  if (in_one_run(stored)) return piece.rows.end;
  if (stored.stride - stored.part >= kPage) return begin + 1;
  // Where the file permutes a head's rows, a run is whole heads, or one row.
  const auto rows =
      static_cast<std::int64_t>(kRunBytes / std::max<std::uint64_t>(stored.stride, 1));
  if (rows < stored.period || rows == 0) return begin + 1;
  const std::int64_t head_end = begin - begin % stored.period + stored.period;
  return std::min(head_end + (rows / stored.period - 1) * stored.period, piece.rows.end);
}

}  // namespace

void PieceReader::read(const LoadPiece& piece, std::byte* out) {
  if (piece.tensor->quantized != nullptr) return read_quantized(piece, out);
  const StoredRows stored(piece);
  const std::size_t row_bytes = piece.columns.size() * size_of(piece.dtype);
  Range run{piece.rows.begin, piece.rows.begin};
  while (run.end < piece.rows.end) {
    run = {run.end, run_end(piece, stored, run.end)};
    read_run(piece, stored, run, out);
    out += run.size() * row_bytes;
  }
}

void PieceReader::read_run(const LoadPiece& piece, const StoredRows& stored, Range run,
                           std::byte* out) {
  const StoredTensor& tensor = *piece.tensor;
  const auto stored_row = [&](std::int64_t row) {
    return stored.period == 1 ? row : tensor.stored_row(row);
  };
  Range span{stored_row(run.begin), stored_row(run.begin)};  // inclusive
  if (stored.period == 1) span.end = run.end - 1;
  for (std::int64_t row = run.begin; stored.period > 1 && row < run.end; ++row) {
    span = {std::min(span.begin, stored_row(row)), std::max(span.end, stored_row(row))};
  }
  const std::uint64_t offset = stored.begin + span.begin * stored.stride;
  const std::uint64_t bytes = span.size() * stored.stride + stored.part;
  if (in_one_run(stored) || (stored.as_is && run.size() == 1)) {
    return read_file(tensor, offset, bytes, out);
  }

  stored_rows_.resize(std::max<std::size_t>(stored_rows_.size(), bytes));
  read_file(tensor, offset, bytes, stored_rows_.data());
  const bool dense = stored.stride == stored.part && stored.elements == piece.columns.size();
  if (dense && stored.period == 1) {
    return decode(tensor.encoding, stored_rows_.data(), run.size() * stored.elements, piece.dtype,
                  out);
  }
  for (std::int64_t row = run.begin; row < run.end; ++row) {
    convert_row(piece, stored, stored_rows_.data() + (stored_row(row) - span.begin) * stored.stride,
                out);
    out += piece.columns.size() * size_of(piece.dtype);
  }
}

void PieceReader::convert_row(const LoadPiece& piece, const StoredRows& stored,
                              const std::byte* from, std::byte* out) {
  if (stored.as_is) {
    std::memcpy(out, from, stored.part);
  } else if (stored.elements == piece.columns.size()) {
    decode(piece.tensor->encoding, from, stored.elements, piece.dtype, out);
  } else {
    const std::size_t element = size_of(piece.dtype);
    row_.resize(std::max(row_.size(), stored.elements * element));
    decode(piece.tensor->encoding, from, stored.elements, piece.dtype, row_.data());
    std::memcpy(out, row_.data() + stored.skip * element, piece.columns.size() * element);
  }
}

void PieceReader::read_file(const StoredTensor& tensor, std::uint64_t offset, std::uint64_t bytes,
                            std::byte* out) {
  const CheckpointFile& file = checkpoint_.files()[tensor.file];
  std::uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(file.fd(), out + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("reading tensor ", tensor.stored_name, " of ", file.path());
    if (got == 0) {
      fail(file.path(), ": ends after ", offset + done, " bytes, in tensor ", tensor.stored_name,
           ", which needs ", tensor.offset + tensor.bytes, "; when it was opened it had ",
           file.size(), ". Something has cut it short since: copy it again");
    }
    done += got;
    bytes_read_ += got;
  }
}

}  // namespace nvllm::model
