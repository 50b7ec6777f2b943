// Any bytes as a GGUF file: an Error refuses them, or all tensors of the checkpoint can be decoded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf.h"
#include "model/testing/memory_file.h"

namespace {

using namespace nvllm::model;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_rows(const CheckpointFile& file, const StoredTensor& tensor) {
  require(bytes_of(tensor.encoding, tensor.shape) == tensor.bytes);
  require(tensor.bytes <= file.size() && tensor.offset <= file.size() - tensor.bytes);
  if (tensor.bytes == 0) return;
  const std::int64_t rows = tensor.shape[0];
  const std::uint64_t row_bytes = tensor.row_bytes();
  const std::int64_t elements = tensor.shape.size() < 2 ? 1 : tensor.shape.back();
  std::vector<std::byte> row(row_bytes);
  std::vector<float> values(static_cast<std::size_t>(elements));
  if (const auto& order = tensor.column_order) {
    const std::int64_t columns = tensor.shape.back();
    for (const std::int64_t i : {std::int64_t{0}, columns / 2, columns - 1}) {
      require(order->stored(i) >= 0 && order->stored(i) < columns && order->run_end(i) <= columns);
    }
  }
  for (const std::int64_t i : {std::int64_t{0}, rows / 2, rows - 1}) {
    const std::int64_t stored = tensor.stored_row(i);
    require(stored >= 0 && stored < rows);
    read_at(file, tensor.offset + static_cast<std::uint64_t>(stored) * row_bytes, row);
    decode(tensor.encoding, row.data(), elements, nvllm::DType::f32, values.data());
  }
}

void fuzz_checkpoint(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  try {
    const Checkpoint checkpoint = open_gguf(file.path());
    require(checkpoint.config_json().starts_with('{'));
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      check_rows(checkpoint.files()[tensor.file], tensor);
    }
  } catch (const nvllm::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  bool whole = false;
  try {
    whole = parse_gguf(bytes, size, "FILE").has_value();
    require(whole);
  } catch (const nvllm::Error&) {
  }
  // A beginning of it may ask for more, but never says anything else of what the whole file is.
  try {
    (void)parse_gguf(bytes.first(size / 2), size, "FILE");
  } catch (const nvllm::Error&) {
    require(!whole);
  }
  fuzz_checkpoint(bytes);
  return 0;
}
