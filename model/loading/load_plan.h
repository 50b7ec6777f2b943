// The plan of a load, and its execution: every slice of the parameters is cut into pieces, each of
// which is read, converted and copied as a unit, in file order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

// A rectangle of a weight, viewed as rows of columns (a 1-D tensor is one row), and its dense
// destination.
struct LoadPiece {
  const StoredTensor* tensor = nullptr;
  layers::Range rows;
  layers::Range columns;
  DType dtype = DType::f32;  // after conversion
  std::byte* to = nullptr;   // device memory

  // For a quantized parameter: whole rows are packed (kernels/gemm/quantized_weight.h), with
  // separate memory for scales. Its outputs are the piece's rows.
  std::optional<kernels::QuantizedShape> packed = std::nullopt;
  std::byte* scales_to = nullptr;

  // The bytes written to `to`, and to `scales_to`.
  std::size_t value_bytes() const {
    if (packed) return packed->value_bytes();
    return static_cast<std::size_t>(rows.size() * columns.size()) * size_of(dtype);
  }
  std::size_t scale_bytes() const { return packed ? packed->scale_bytes() : 0; }
  std::size_t bytes() const { return value_bytes() + scale_bytes(); }
};

// The location of a piece's rows in the file.
struct StoredRows {
  explicit StoredRows(const LoadPiece& piece);

  std::uint64_t stride;   // bytes from one row of the tensor to the next
  std::uint64_t begin;    // file offset of the piece's part of row 0
  std::uint64_t part;     // bytes of a row that the piece reads: whole blocks
  std::int64_t skip;      // leading elements of the first block outside the piece
  std::int64_t elements;  // in those bytes
  std::int64_t period;    // of permuted rows (StoredOrder); otherwise 1
  bool as_is;             // no conversion: the stored bytes are the piece's bytes

  // The index of the piece's column among those elements: after `skip`, unless the file permutes
  // columns; then the elements are the whole row.
  std::int64_t element(const LoadPiece& piece, std::int64_t column) const {
    const auto& order = piece.tensor->column_order;
    return order ? order->stored(column) : column - piece.columns.begin + skip;
  }
};

struct LoadPlan {
  std::vector<LoadPiece> pieces;
  std::uint64_t bytes = 0;  // of all pieces, after conversion
};

// Looks up and checks every tensor; throws an Error before anything is read. A piece has at most
// `piece_bytes` bytes, both as read and as converted, unless a single block has more, or a row with
// permuted columns.
LoadPlan plan_load(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                   std::size_t piece_bytes);

// Reads pieces of a plan from files into host memory, in the parameters' format. Not thread-safe.
// Reads with pread: a file that has been truncated causes an Error, not a signal, and data that is
// read twice does not stay in this process's memory.
class PieceReader {
 public:
  explicit PieceReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // `out` takes piece.value_bytes(), `scales` piece.scale_bytes().
  void read(const LoadPiece& piece, std::byte* out, std::byte* scales = nullptr);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  // The scales and zero points of a piece of a quantized weight, by row.
  struct Scales;

  // A part of a tensor of the file, converted to T.
  template <typename T>
  std::vector<T> read_part(const StoredTensor& tensor, layers::Range rows, layers::Range columns);
  struct StoredValues;
  // Converts powers of two, the scales of MXFP4; throws an Error for any other value.
  float mxfp4_scale(const StoredTensor& tensor, std::uint8_t scale) const;
  std::vector<float> read_powers(const StoredTensor& tensor, layers::Range rows,
                                 layers::Range columns);
  Scales read_scales(const LoadPiece& piece);
  StoredValues read_values(const LoadPiece& piece);
  void read_quantized(const LoadPiece& piece, std::byte* out);

  // The same for parameters that stay quantized, or are quantized here, by the file's format.
  void read_packed(const LoadPiece& piece, std::byte* out, std::byte* scales);
  void pack_weight(const LoadPiece& piece, std::byte* out, std::byte* scales);
  void pack_blocks(const LoadPiece& piece, std::byte* out, std::byte* scales);
  void pack_mxfp4_blocks(const LoadPiece& piece, std::byte* out, std::byte* scales);
  void pack_floats(const LoadPiece& piece, std::byte* out, std::byte* scales);

  // The file's rows that hold these: of whole periods, of one block, or one.
  static layers::Range stored_span(const LoadPiece& piece, const StoredRows& stored,
                                   layers::Range run);
  // Reads the file's rows; valid until the next call.
  const std::byte* read_rows(const LoadPiece& piece, const StoredRows& stored, layers::Range span);
  void read_run(const LoadPiece& piece, const StoredRows& stored, layers::Range run,
                std::byte* out);
  // Calls function(the stored bytes of a row's part) for all rows of the piece, in order.
  template <typename Function>
  void for_stored_rows(const LoadPiece& piece, const StoredRows& stored, const Function& function);
  void convert_row(const LoadPiece& piece, const StoredRows& stored, const std::byte* from,
                   std::byte* out);
  // Recovers x from the stored -exp(x).
  void undo_minus_exp(const LoadPiece& piece, std::byte* out) const;
  // For a tensor with strides.
  void read_strided(const LoadPiece& piece, std::byte* out);
  void read_file(const StoredTensor& tensor, std::uint64_t offset, std::uint64_t bytes,
                 std::byte* out);

  const Checkpoint& checkpoint_;
  std::vector<std::byte> stored_rows_;  // rows as read, before conversion
  std::vector<std::byte> row_;          // whole blocks of a row of which only a part is needed
  std::vector<std::uint8_t> values_;    // rows of quantized values, before they are packed
  std::uint64_t bytes_read_ = 0;
};

// Executes the plan with `threads` threads, which take the pieces in order, and returns the number
// of bytes read. staging_bytes: the size of each thread's two pinned staging buffers; 0: device
// memory is written in place. The caller's thread calls progress(bytes loaded) about ten times a
// second. The first exception, in any thread or in `progress`, ends all threads and is rethrown
// here.
std::uint64_t execute_load(const LoadPlan& plan, const Checkpoint& checkpoint, Backend& backend,
                           std::size_t staging_bytes, int threads,
                           const std::function<void(std::uint64_t)>& progress);

}  // namespace nvllm::model
