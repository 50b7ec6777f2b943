// A config.json with a quantization_config, then the bytes of a safetensors file with the tensors
// that it speaks of: refused with an Error, or joined to weights that lie in the file. The first
// two bytes are the length of the config.json.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/quantized_weight.h"
#include "model/checkpoint/safetensors.h"
#include "model/testing/memory_file.h"

namespace {

using namespace nvllm::model;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_in_file(const StoredTensor& tensor, const CheckpointFile& file) {
  require(tensor.bytes <= file.size() && tensor.offset <= file.size() - tensor.bytes);
}

void fuzz_join(std::string_view config, std::span<const std::byte> bytes) {
  std::vector<CheckpointFile> files;
  files.push_back(open_file(MemoryFile(bytes).path()));
  const auto tensors =
      join_quantized(parse_safetensors(bytes, bytes.size(), "FILE"), files, config, "config.json");
  for (const StoredTensor& tensor : tensors) {
    if (tensor.quantized == nullptr) {
      check_in_file(tensor, files[0]);
      continue;
    }
    check_in_file(tensor.quantized->values, files[0]);
    check_in_file(tensor.quantized->scales, files[0]);
    if (tensor.quantized->zeros) check_in_file(*tensor.quantized->zeros, files[0]);
    if (tensor.quantized->group_of) check_in_file(*tensor.quantized->group_of, files[0]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t length = std::min<std::size_t>(data[0] + data[1] * std::size_t{256}, size - 2);
  const std::string_view config(reinterpret_cast<const char*>(data) + 2, length);
  try {
    (void)read_quantization_config(config, "config.json");
    fuzz_join(config, std::as_bytes(std::span(data + 2 + length, size - 2 - length)));
  } catch (const nvllm::Error& error) {
    require(std::string_view(error.what()).size() < 600);
  }
  return 0;
}
