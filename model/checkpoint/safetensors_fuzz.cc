// Any bytes as a safetensors file and as an index: an Error, or every promise of the header holds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/safetensors.h"

namespace {

using namespace nvllm::model;

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_file(std::span<const std::byte> bytes, std::uint64_t file_size) {
  try {
    std::uint64_t used = 0;
    for (const StoredTensor& tensor : parse_safetensors(bytes, file_size, "FILE")) {
      require(tensor.offset >= kSafetensorsLengthBytes && tensor.bytes <= file_size);
      require(tensor.offset <= file_size - tensor.bytes);
      require(bytes_of(tensor.encoding, tensor.shape) == tensor.bytes);
      if (tensor.bytes > 0) require(tensor.row_bytes() <= tensor.bytes);
      used += tensor.bytes;
    }
    require(used == file_size - safetensors_header_bytes(bytes, file_size, "FILE"));
  } catch (const nvllm::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  fuzz_file(bytes, size);
  // The header alone of a larger file; sizes that are valid of whatever the header says.
  for (const std::uint64_t more : {24, 32, 4096}) {
    try {
      const std::uint64_t header = safetensors_header_bytes(bytes, size, "FILE");
      fuzz_file(bytes.first(header), header + more);
    } catch (const nvllm::Error&) {
    }
  }
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const auto& [tensor, file] : parse_safetensors_index(text, "INDEX")) {
      require(file.find('/') == std::string::npos);
    }
  } catch (const nvllm::Error&) {
  }
  return 0;
}
