// Copies of rows that lie apart, for transfer_bench: what offloading would cost if its layouts did
// not make every transfer one piece.
#pragma once

#include <cstddef>

#include "device/backend.h"

namespace nvllm {

struct Rows {
  void* to = nullptr;  // one row after the other
  const void* from = nullptr;
  std::size_t from_pitch = 0;  // bytes from one row to the next
  std::size_t row_bytes = 0;
  std::size_t rows = 0;
};

// One copy per row.
inline void copy_one_by_one(Backend& backend, const Rows& rows, Stream& stream) {
  for (std::size_t i = 0; i < rows.rows; ++i) {
    backend.copy(static_cast<std::byte*>(rows.to) + i * rows.row_bytes,
                 static_cast<const std::byte*>(rows.from) + i * rows.from_pitch, rows.row_bytes,
                 stream);
  }
}

// One two-dimensional copy on a GPU; throws an Error elsewhere.
void copy_two_dimensional(const Rows& rows, Stream& stream);

}  // namespace nvllm
