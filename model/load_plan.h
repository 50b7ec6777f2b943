// The plan of a load: every slice that the parameters name, in pieces small enough to be read, converted
// and copied as one, in the order in which they lie in the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/dtype.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "model/checkpoint.h"

namespace nvllm::model {

// A rectangle of a stored tensor, seen as rows of columns (a tensor of one dimension is one row), and
// the place for it: dense, its rows one after the other.
struct LoadPiece {
  const StoredTensor* tensor = nullptr;
  layers::Range rows;
  layers::Range columns;
  DType dtype = DType::f32;  // that it becomes
  std::byte* to = nullptr;   // device memory

  std::size_t bytes() const {
    return static_cast<std::size_t>(rows.size() * columns.size()) * size_of(dtype);
  }
};

// The bytes that rows of a piece take in the file.
struct StoredRows {
  explicit StoredRows(const LoadPiece& piece);

  std::uint64_t stride;   // from one row of the tensor to the next
  std::uint64_t begin;    // of the piece's part of row 0, in the file
  std::uint64_t part;     // bytes of a row that the piece reads: whole blocks
  std::int64_t skip;      // elements of the first block that are not the piece's
  std::int64_t elements;  // in those bytes
  std::int64_t period;    // rows of a head, which the file may hold in another order; else 1
  bool as_is;             // the bytes are the parameter's
};

struct LoadPlan {
  std::vector<LoadPiece> pieces;
  std::uint64_t bytes = 0;  // of all pieces, as they become
};

// Looks up and checks every tensor: what does not fit is an Error, and nothing has been read by then.
// A piece has at most `piece_bytes` bytes, as read and as it becomes, unless a single block has more.
LoadPlan plan_load(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                   std::size_t piece_bytes);

}  // namespace nvllm::model
