#include "model/loading/load_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/math.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Range;
using layers::Slice;

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool within(const Range& range, std::int64_t size) {
  return 0 <= range.begin && range.begin <= range.end && range.end <= size;
}

// Checks that the slices cover the parameter exactly; layers declare both.
void check_slices(const Parameter& parameter) {
  const bool matrix = parameter.shape.size() == 2;
  NVLLM_CHECK(matrix || parameter.shape.size() == 1, parameter.name);
  std::vector<Range> covered;
  for (const Slice& slice : parameter.slices) {
    NVLLM_CHECK_EQ(slice.shape.size(), parameter.shape.size());
    NVLLM_CHECK(within(slice.rows, slice.shape[0]), parameter.name, " of ", slice.tensor);
    if (slice.rows.size() == 0) continue;
    NVLLM_CHECK(within(slice.columns, matrix ? slice.shape[1] : 1), parameter.name, " of ",
                slice.tensor);
    NVLLM_CHECK(slice.columns.size() == (matrix ? parameter.shape[1] : 1), parameter.name, " of ",
                slice.tensor);
    covered.push_back({slice.to_row, slice.to_row + slice.rows.size()});
  }
  std::ranges::sort(covered, {}, &Range::begin);
  std::int64_t row = 0;
  for (const Range& range : covered) {
    NVLLM_CHECK(range.begin == row, parameter.name, " row ", row);
    row = range.end;
  }
  NVLLM_CHECK(row == parameter.shape[0] || element_count(parameter.shape) == 0, parameter.name,
              " row ", row);
}

// The rows of a slice as a packed weight of their own.
kernels::QuantizedShape with_rows(kernels::QuantizedShape shape, const Range& rows) {
  shape.outputs = rows.size();
  return shape;
}

// Cuts a slice of a quantized parameter: a piece has whole rows. Cuts lie where periods of rows
// begin, and words of eight outputs.
void cut_packed(const LoadPiece& whole, const StoredRows& stored, std::size_t piece_bytes,
                std::vector<LoadPiece>& pieces) {
  const kernels::QuantizedShape row = with_rows(*whole.packed, {0, 1});
  const std::size_t row_bytes = std::max<std::size_t>(row.value_bytes() + row.scale_bytes(), 1);
  const std::int64_t unit = std::lcm(stored.period, std::int64_t{8});
  std::int64_t rows = static_cast<std::int64_t>(piece_bytes / row_bytes);
  rows = std::max<std::int64_t>(rows >= unit ? rows - rows % unit : rows, 1);
  LoadPiece piece = whole;
  for (piece.rows.begin = whole.rows.begin; piece.rows.begin < whole.rows.end;
       piece.rows.begin = piece.rows.end) {
    const std::int64_t from = piece.rows.begin - (rows % unit == 0 ? piece.rows.begin % unit : 0);
    piece.rows.end = std::min(from + rows, whole.rows.end);
    piece.packed = with_rows(*whole.packed, piece.rows);
    pieces.push_back(piece);
    piece.to += piece.value_bytes();
    piece.scales_to += piece.scale_bytes();
  }
}

// Cuts a whole slice into pieces.
void cut(const LoadPiece& whole, std::size_t piece_bytes, std::vector<LoadPiece>& pieces) {
  const StoredTensor& tensor = *whole.tensor;
  const std::int64_t block = block_elements(tensor.encoding);
  const std::size_t element = size_of(whole.dtype);
  const auto max_count = [&](std::size_t stored, std::size_t converted) {  // that fit in a piece
    return static_cast<std::int64_t>(piece_bytes / std::max({stored, converted, std::size_t{1}}));
  };
  const StoredRows stored(whole);
  if (whole.packed) return cut_packed(whole, stored, piece_bytes, pieces);

  // A piece has several rows (whole periods where the file has them in another order), or a part of
  // one row that is too long. Cuts lie where periods and blocks of the whole tensor begin.
  std::int64_t rows = max_count(stored.part, whole.columns.size() * element);
  std::int64_t columns = whole.columns.end;
  const std::int64_t unit = rows >= stored.period ? stored.period : 1;
  rows -= rows % unit;
  if (rows == 0) {
    rows = 1;
    if (!tensor.column_order) {
      columns = block *
                std::max<std::int64_t>(max_count(block_bytes(tensor.encoding), block * element), 1);
    }
  }
  LoadPiece piece = whole;
  for (piece.rows.begin = whole.rows.begin; piece.rows.begin < whole.rows.end;
       piece.rows.begin = piece.rows.end) {
    piece.rows.end = std::min(piece.rows.begin - piece.rows.begin % unit + rows, whole.rows.end);
    for (piece.columns.begin = whole.columns.begin; piece.columns.begin < whole.columns.end;
         piece.columns.begin = piece.columns.end) {
      piece.columns.end = std::min(piece.columns.begin - piece.columns.begin % columns + columns,
                                   whole.columns.end);
      pieces.push_back(piece);
      piece.to += piece.bytes();
    }
  }
}

// Whether the file's elements are those of the type.
bool same_elements(Encoding encoding, DType dtype) {
  return (encoding == Encoding::f32 && dtype == DType::f32) ||
         (encoding == Encoding::f16 && dtype == DType::f16) ||
         (encoding == Encoding::bf16 && dtype == DType::bf16) ||
         (encoding == Encoding::f8_e4m3 && dtype == DType::u8) ||
         (encoding == Encoding::i32 && dtype == DType::i32);
}

// The file offset at which a piece begins, ignoring another order of rows.
std::uint64_t file_offset(const LoadPiece& piece) {
  const StoredRows stored(piece);
  return stored.begin + (piece.rows.begin - piece.rows.begin % stored.period) * stored.stride;
}

}  // namespace

StoredRows::StoredRows(const LoadPiece& piece) {
  const StoredTensor& tensor = *piece.tensor;
  const bool matrix = tensor.shape.size() == 2;
  const std::int64_t block = block_elements(tensor.encoding);
  const Range columns = tensor.column_order ? Range{0, tensor.shape.back()} : piece.columns;
  const std::int64_t first = columns.begin / block;
  const std::int64_t last = divide_up(columns.end, block);
  stride = matrix ? tensor.row_bytes() : tensor.bytes;
  begin = tensor.offset + first * block_bytes(tensor.encoding);
  part = (last - first) * block_bytes(tensor.encoding);
  skip = columns.begin - first * block;
  elements = (last - first) * block;
  period = matrix && tensor.row_order ? tensor.row_order->period() : 1;
  as_is = !tensor.column_order && same_elements(tensor.encoding, piece.dtype);
}

LoadPlan plan_load(std::span<Parameter* const> parameters, const Checkpoint& checkpoint,
                   std::size_t piece_bytes) {
  LoadPlan plan;
  for (const Parameter* parameter : parameters) {
    check_slices(*parameter);
    for (const Slice& slice : parameter->slices) {
      const StoredTensor& tensor = checkpoint.get(slice.tensor, slice.shape);
      const bool matrix = slice.shape.size() == 2;
      LoadPiece piece;
      piece.tensor = &tensor;
      piece.rows = matrix ? slice.rows : Range{0, 1};
      piece.columns = matrix ? slice.columns : slice.rows;
      piece.dtype = parameter->type;
      if (piece.rows.size() * piece.columns.size() == 0) continue;
      NVLLM_CHECK(parameter->view.data != nullptr, parameter->name, " has no memory");
      if (parameter->quantization) {
        piece.packed = with_rows(parameter->quantized_shape(), piece.rows);
        const kernels::QuantizedShape before = with_rows(*piece.packed, {0, slice.to_row});
        piece.to = parameter->view.as<std::byte>() + before.value_bytes();
        piece.scales_to = parameter->scales.as<std::byte>() + before.scale_bytes();
      } else {
        const std::int64_t first = slice.to_row * (matrix ? parameter->shape[1] : 1);
        piece.to = parameter->view.as<std::byte>() + first * size_of(piece.dtype);
      }
      plan.bytes += piece.bytes();
      cut(piece, piece_bytes, plan.pieces);
    }
  }
  std::ranges::sort(plan.pieces, {}, [](const LoadPiece& piece) {
    return std::pair(piece.tensor->file, file_offset(piece));
  });
  return plan;
}

}  // namespace nvllm::model
