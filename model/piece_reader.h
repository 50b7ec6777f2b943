// Reads pieces of a plan from files into host memory, as the parameters have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/checkpoint.h"
#include "model/load_plan.h"

namespace nvllm::model {

// Used by one thread. Reads with pread: a file that has become shorter is an Error, not a signal, and
// what is read twice does not stay in this process's memory.
class PieceReader {
 public:
  explicit PieceReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // `out` takes piece.bytes().
  void read(const LoadPiece& piece, std::byte* out);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void read_run(const LoadPiece& piece, const StoredRows& stored, layers::Range run,
                std::byte* out);
  void convert_row(const LoadPiece& piece, const StoredRows& stored, const std::byte* from,
                   std::byte* out);
  void read_file(const StoredTensor& tensor, std::uint64_t offset, std::uint64_t bytes,
                 std::byte* out);

  const Checkpoint& checkpoint_;
  std::vector<std::byte> stored_rows_;  // on their way through conversion
  std::vector<std::byte> row_;          // whole blocks of a row of which only a part is wanted
  std::uint64_t bytes_read_ = 0;
};

}  // namespace nvllm::model
