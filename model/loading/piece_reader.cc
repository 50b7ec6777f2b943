// PieceReader: reads and converts the pieces of a plan.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "model/loading/load_plan.h"
#include "model/loading/packing.h"

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
  // Where the file has the rows in another order, a run is whole periods, or a part of a block.
  const auto rows =
      static_cast<std::int64_t>(kRunBytes / std::max<std::uint64_t>(stored.stride, 1));
  if (rows == 0) return begin + 1;
  const bool ordered = stored.period > 1;
  const std::int64_t first = ordered ? piece.tensor->row_order->first : 0;
  std::int64_t end = begin + rows;
  if (ordered && (begin < first || rows < stored.period)) {
    end = std::min(end, piece.tensor->row_order->run_end(begin));
  } else {
    const std::int64_t period_end = begin - (begin - first) % stored.period + stored.period;
    end = period_end + (rows / stored.period - 1) * stored.period;
  }
  return std::min(end, piece.rows.end);
}

// Calls function(first column, how many) for all of the piece's columns, in order, that lie
// together in the file.
template <typename Function>
void for_column_runs(const LoadPiece& piece, const Function& function) {
  std::int64_t end = 0;
  for (std::int64_t begin = piece.columns.begin; begin < piece.columns.end; begin = end) {
    end = piece.columns.end;
    const auto& order = piece.tensor->column_order;
    if (order) end = std::min(end, order->run_end(begin));
    function(begin, end - begin);
  }
}

}  // namespace

void PieceReader::read(const LoadPiece& piece, std::byte* out, std::byte* scales) {
  if (piece.packed) return read_packed(piece, out, scales);
  if (piece.tensor->quantized != nullptr) return read_quantized(piece, out);
  if (piece.tensor->strides) return read_strided(piece, out);
  const StoredRows stored(piece);
  const std::size_t row_bytes = piece.columns.size() * size_of(piece.dtype);
  Range run{piece.rows.begin, piece.rows.begin};
  std::byte* to = out;
  while (run.end < piece.rows.end) {
    run = {run.end, run_end(piece, stored, run.end)};
    read_run(piece, stored, run, to);
    to += run.size() * row_bytes;
  }
  if (piece.tensor->stored_as_minus_exp) undo_minus_exp(piece, out);
}

void PieceReader::undo_minus_exp(const LoadPiece& piece, std::byte* out) const {
  NVLLM_CHECK(piece.dtype == DType::f32 && piece.rows.size() == 1, piece.tensor->name);
  for (std::int64_t i = 0; i < piece.columns.size(); ++i) {
    float value = 0;
    std::memcpy(&value, out + i * sizeof(value), sizeof(value));
    if (!(value < 0) || !std::isfinite(value)) {
      fail(checkpoint_.files()[piece.tensor->file].path(), ": tensor ", piece.tensor->stored_name,
           ": expected numbers below 0, found ", value);
    }
    value = std::log(-value);
    std::memcpy(out + i * sizeof(value), &value, sizeof(value));
  }
}

Range PieceReader::stored_span(const LoadPiece& piece, const StoredRows& stored, Range run) {
  if (stored.period == 1) return run;
  Range span{piece.tensor->stored_row(run.begin), 0};
  for (std::int64_t row = run.begin; row < run.end; ++row) {
    const std::int64_t there = piece.tensor->stored_row(row);
    span = {std::min(span.begin, there), std::max(span.end, there + 1)};
  }
  return span;
}

const std::byte* PieceReader::read_rows(const LoadPiece& piece, const StoredRows& stored,
                                        Range span) {
  const std::uint64_t bytes = (span.size() - 1) * stored.stride + stored.part;
  stored_rows_.resize(std::max<std::size_t>(stored_rows_.size(), bytes));
  read_file(*piece.tensor, stored.begin + span.begin * stored.stride, bytes, stored_rows_.data());
  return stored_rows_.data();
}

void PieceReader::read_run(const LoadPiece& piece, const StoredRows& stored, Range run,
                           std::byte* out) {
  const StoredTensor& tensor = *piece.tensor;
  const Range span = stored_span(piece, stored, run);
  if (in_one_run(stored) || (stored.as_is && run.size() == 1)) {
    return read_file(tensor, stored.begin + span.begin * stored.stride,
                     (span.size() - 1) * stored.stride + stored.part, out);
  }
  const std::byte* const rows = read_rows(piece, stored, span);
  const bool dense = stored.stride == stored.part && stored.elements == piece.columns.size() &&
                     !tensor.column_order;
  if (dense && stored.period == 1) {
    return decode(tensor.encoding, rows, run.size() * stored.elements, piece.dtype, out);
  }
  for (std::int64_t row = run.begin; row < run.end; ++row) {
    const std::int64_t there = stored.period == 1 ? row : tensor.stored_row(row);
    convert_row(piece, stored, rows + (there - span.begin) * stored.stride, out);
    out += piece.columns.size() * size_of(piece.dtype);
  }
}

template <typename Function>
void PieceReader::for_stored_rows(const LoadPiece& piece, const StoredRows& stored,
                                  const Function& function) {
  Range run{piece.rows.begin, piece.rows.begin};
  while (run.end < piece.rows.end) {
    run = {run.end, run_end(piece, stored, run.end)};
    const Range span = stored_span(piece, stored, run);
    const std::byte* const rows = read_rows(piece, stored, span);
    for (std::int64_t row = run.begin; row < run.end; ++row) {
      const std::int64_t there = stored.period == 1 ? row : piece.tensor->stored_row(row);
      function(rows + (there - span.begin) * stored.stride);
    }
  }
}

void PieceReader::pack_blocks(const LoadPiece& piece, std::byte* out, std::byte* scales_out) {
  const StoredTensor& tensor = *piece.tensor;
  const StoredRows stored(piece);
  const kernels::QuantizedShape& shape = *piece.packed;
  const std::size_t scale_bytes = shape.scale_bytes() / static_cast<std::size_t>(shape.outputs);
  // Integers from 0 on are stored as they are in 4 bits, signed ones with what is taken off them.
  const bool from_0 = tensor.encoding == Encoding::q4_1 || tensor.encoding == Encoding::q4_k;
  const bool int4 = shape.format == kernels::WeightFormat::int4;
  const int zero = int4 ? 8 : 128, added = int4 && from_0 ? 0 : zero;
  const auto parts = static_cast<std::size_t>(stored.elements / 16);
  std::vector<std::int8_t> integers(static_cast<std::size_t>(stored.elements));
  std::vector<std::uint8_t> values(static_cast<std::size_t>(shape.inputs));
  std::vector<float> all_scales(parts), all_offsets(parts), scales, offsets;
  for_stored_rows(piece, stored, [&](const std::byte* row) {
    decode_integers(tensor.encoding, row, stored.elements, integers.data(), all_scales.data(),
                    all_offsets.data());
    scales.clear(), offsets.clear();
    for (std::int64_t i = 0; i < shape.inputs; i += shape.group) {
      const std::int64_t from = stored.element(piece, piece.columns.begin + i);
      for (std::int64_t n = 0; n < std::min(shape.group, shape.inputs - i); ++n)
        values[i + n] = static_cast<std::uint8_t>(integers[from + n] + added);
      const auto part = static_cast<std::size_t>(from / 16);
      scales.push_back(all_scales[part]);
      offsets.push_back(all_offsets[part] + static_cast<float>(zero - added) * all_scales[part]);
    }
    check_scales(tensor, shape, scales, offsets);
    pack_values(shape, values.data(), out);
    pack_scales(shape, scales, offsets, scales_out);
    out += shape.row_bytes();
    scales_out += scale_bytes;
  });
}

// The piece begins where a block does (choose_quantization()).
void PieceReader::pack_mxfp4_blocks(const LoadPiece& piece, std::byte* out, std::byte* scales_out) {
  const StoredTensor& tensor = *piece.tensor;
  const StoredRows stored(piece);
  const kernels::QuantizedShape& shape = *piece.packed;
  const std::size_t scale_bytes = shape.scale_bytes() / static_cast<std::size_t>(shape.outputs);
  NVLLM_CHECK_EQ(stored.skip, 0);
  constexpr std::int64_t kBlockBytes = 1 + kernels::kMxfp4Group / 2;
  const std::int64_t blocks = divide_up(shape.inputs, kernels::kMxfp4Group);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(blocks * kernels::kMxfp4Group));
  std::vector<float> scales;
  for_stored_rows(piece, stored, [&](const std::byte* row) {
    scales.clear();
    for (std::int64_t i = 0; i < shape.inputs; i += kernels::kMxfp4Group) {
      const std::int64_t from = stored.element(piece, piece.columns.begin + i);
      const std::byte* block = row + from / kernels::kMxfp4Group * kBlockBytes;
      scales.push_back(mxfp4_scale(tensor, std::to_integer<std::uint8_t>(*block++)));
      for (std::int64_t n = 0; n < kernels::kMxfp4Group / 2; ++n, ++block) {
        codes[i + n] = std::to_integer<std::uint8_t>(*block) & 15;
        codes[i + n + kernels::kMxfp4Group / 2] = std::to_integer<std::uint8_t>(*block) >> 4;
      }
    }
    pack_values(shape, codes.data(), out);
    pack_scales(shape, scales, {}, scales_out);
    out += shape.row_bytes();
    scales_out += scale_bytes;
  });
}

float PieceReader::mxfp4_scale(const StoredTensor& tensor, std::uint8_t scale) const {
  if (scale != 255) return kernels::e8m0_to_float(scale);
  fail(checkpoint_.files()[tensor.file].path(), ": tensor ", tensor.stored_name,
       ": a scale of MXFP4 is 255, which stands for no number");
}

// The elements of a row that are read, or of a column where those lie nearer to each other, are a
// line; several lines are read at once.
void PieceReader::read_strided(const LoadPiece& piece, std::byte* out) {
  const StoredTensor& tensor = *piece.tensor;
  const StoredStrides& strides = *tensor.strides;
  const bool is_row = tensor.shape.size() == 1 || strides.columns < strides.rows;
  const Range line = is_row ? piece.columns : piece.rows,
              lines = is_row ? piece.rows : piece.columns;
  const std::int64_t step = is_row ? strides.columns : strides.rows,
                     line_step = is_row ? strides.rows : strides.columns;
  const std::int64_t stored = block_bytes(tensor.encoding), count = line.size();
  const auto element = static_cast<std::int64_t>(size_of(piece.dtype));
  const std::int64_t line_bytes = ((count - 1) * step + 1) * stored, next_line = line_step * stored;
  const bool together = next_line - line_bytes < static_cast<std::int64_t>(kPage);
  const std::int64_t at_once =
      together ? std::max<std::int64_t>(kRunBytes / std::max<std::int64_t>(next_line, 1), 1) : 1;
  row_.resize(std::max(row_.size(), static_cast<std::size_t>(count * element)));
  for (std::int64_t first = lines.begin; first < lines.end; first += at_once) {
    const std::int64_t some = std::min(at_once, lines.end - first);
    const auto bytes = static_cast<std::uint64_t>((some - 1) * next_line + line_bytes);
    stored_rows_.resize(std::max<std::size_t>(stored_rows_.size(), bytes));
    read_file(
        tensor,
        tensor.offset + static_cast<std::uint64_t>(first * next_line + line.begin * step * stored),
        bytes, stored_rows_.data());
    for (std::int64_t i = 0; i < some; ++i) {
      std::byte* const from = stored_rows_.data() + i * next_line;
      for (std::int64_t j = 1; j < count && step > 1; ++j) {
        std::memmove(from + j * stored, from + j * step * stored, static_cast<std::size_t>(stored));
      }
      if (tensor.encoding == Encoding::u8) {
        std::memcpy(row_.data(), from, static_cast<std::size_t>(count));
      } else {
        decode(tensor.encoding, from, count, piece.dtype, row_.data());
      }
      const std::int64_t number = first + i - lines.begin;
      if (is_row) {
        std::memcpy(out + number * count * element, row_.data(),
                    static_cast<std::size_t>(count * element));
        continue;
      }
      for (std::int64_t j = 0; j < count; ++j) {
        std::memcpy(out + (j * lines.size() + number) * element, row_.data() + j * element,
                    static_cast<std::size_t>(element));
      }
    }
  }
}

void PieceReader::convert_row(const LoadPiece& piece, const StoredRows& stored,
                              const std::byte* from, std::byte* out) {
  if (stored.as_is) {
    std::memcpy(out, from, stored.part);
  } else if (stored.elements == piece.columns.size() && !piece.tensor->column_order) {
    decode(piece.tensor->encoding, from, stored.elements, piece.dtype, out);
  } else {
    const std::size_t element = size_of(piece.dtype);
    row_.resize(std::max(row_.size(), stored.elements * element));
    decode(piece.tensor->encoding, from, stored.elements, piece.dtype, row_.data());
    for_column_runs(piece, [&](std::int64_t begin, std::int64_t size) {
      std::memcpy(out, row_.data() + stored.element(piece, begin) * element, size * element);
      out += size * element;
    });
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
