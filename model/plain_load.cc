#include "model/plain_load.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace nvllm::model {
namespace {

std::vector<std::byte> read_row(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                std::int64_t row, std::uint64_t bytes) {
  std::vector<std::byte> stored(bytes);
  const CheckpointFile& file = checkpoint.files()[tensor.file];
  const std::uint64_t offset = tensor.offset + tensor.stored_row(row) * bytes;
  if (pread(file.fd(), stored.data(), bytes, offset) != static_cast<ssize_t>(bytes)) {
    fail(file.path(), ": cannot read tensor ", tensor.stored_name);
  }
  return stored;
}

// The slice's values, dense. A tensor of one dimension is one row here.
std::vector<std::byte> read_slice(const layers::Slice& slice, const Checkpoint& checkpoint,
                                  DType dtype, std::uint64_t& bytes_read) {
  const StoredTensor& tensor = checkpoint.get(slice.tensor, slice.shape);
  const bool matrix = slice.shape.size() == 2;
  const layers::Range rows = matrix ? slice.rows : layers::Range{0, 1};
  const layers::Range columns = matrix ? slice.columns : slice.rows;
  const std::int64_t whole = slice.shape.back();
  const std::size_t element = size_of(dtype);
  std::vector<std::byte> values(rows.size() * columns.size() * element);
  if (values.empty()) return values;
  std::vector<std::byte> row_values(whole * element);
  std::byte* out = values.data();
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::vector<std::byte> stored =
        read_row(checkpoint, tensor, row, matrix ? tensor.row_bytes() : tensor.bytes);
    decode(tensor.encoding, stored.data(), whole, dtype, row_values.data());
    std::memcpy(out, row_values.data() + columns.begin * element, columns.size() * element);
    out += columns.size() * element;
    bytes_read += stored.size();
  }
  return values;
}

}  // namespace

std::uint64_t plain_load(std::span<layers::Parameter* const> parameters,
                         const Checkpoint& checkpoint, Backend& backend,
                         const std::function<void(std::uint64_t)>& progress) {
  std::uint64_t bytes_read = 0, bytes_loaded = 0;
  const auto stream = backend.create_stream();
  for (const layers::Parameter* parameter : parameters) {
    const TensorView& view = parameter->view;
    for (const layers::Slice& slice : parameter->slices) {
      const auto values = read_slice(slice, checkpoint, view.dtype, bytes_read);
      if (values.empty()) continue;
      const std::int64_t row_elements = view.rank == 2 ? view.shape[1] : 1;
      backend.copy(view.as<std::byte>() + slice.to_row * row_elements * size_of(view.dtype),
                   values.data(), values.size(), *stream);
      stream->synchronize();
      bytes_loaded += values.size();
      if (progress) progress(bytes_loaded);
    }
  }
  return bytes_read;
}

}  // namespace nvllm::model
