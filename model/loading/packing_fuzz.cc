// A GGUF file, or a config.json and a safetensors file as in quantized_fuzz.cc, whose matrices are
// loaded as GEMMs' weights: refused with an Error, or packed in exactly the memory that is theirs.
// The first two bytes say how: which part of a matrix, into which format, in pieces of which size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/quantized_weight.h"
#include "model/checkpoint/safetensors.h"
#include "model/loading/load_plan.h"
#include "model/loading/packing.h"
#include "model/testing/memory_file.h"

namespace {

using namespace nvllm;
using namespace nvllm::model;

constexpr std::int64_t kMaxElements = 1 << 16;  // of a matrix that is loaded

void require(bool condition) {
  if (!condition) std::abort();
}

// bytes: the length of the config.json (2), it, the safetensors file.
Checkpoint open_quantized(std::string_view bytes) {
  if (bytes.size() < 2) fail("no length");
  const auto low = static_cast<std::uint8_t>(bytes[0]), high = static_cast<std::uint8_t>(bytes[1]);
  const std::string config(bytes.substr(2, low + high * std::size_t{256}));
  const auto stored = std::as_bytes(std::span(bytes.substr(2 + config.size())));
  std::vector<CheckpointFile> files;
  files.push_back(open_file(MemoryFile(stored).path()));
  std::vector<StoredTensor> tensors = parse_safetensors(stored, stored.size(), "FILE");
  tensors = join_quantized(std::move(tensors), files, config, "config.json");
  return {std::move(files), std::move(tensors), config};
}

Checkpoint open(std::string_view bytes) {
  if (!bytes.starts_with("GGUF")) return open_quantized(bytes);
  return open_gguf(MemoryFile(std::as_bytes(std::span(bytes))).path());
}

// Loads a part of the matrix, as a rank does with its share.
void load(const Checkpoint& checkpoint, const StoredTensor& tensor, std::uint8_t part,
          std::uint8_t how) {
  const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  layers::Slice slice{.tensor = tensor.name,
                      .shape = tensor.shape,
                      .rows = {rows * (part % 4) / 4, rows},
                      .columns = {columns * (part / 4 % 4) / 4 / 128 * 128, columns},
                      .to_row = 0};
  if (part & 16) slice.rows.end -= slice.rows.size() / 3;
  if (part & 32) slice.columns.end -= slice.columns.size() / 3;
  layers::Parameter parameter{.name = "weight",
                              .shape = {slice.rows.size(), slice.columns.size()},
                              .slices = {slice},
                              .may_be_quantized = layers::MayBeQuantized::yes,
                              .view = {},
                              .scales = {},
                              .type = how & 8 ? DType::f16 : DType::f32};
  if (parameter.elements() == 0) return;
  layers::Parameter* const parameters[] = {&parameter};
  choose_quantization(parameters, &checkpoint,
                      {.format = static_cast<QuantizationChoice::Format>(how % 5)});

  // Whatever is written beside its memory, the sanitizer sees.
  LoadPiece whole{.rows = slice.rows, .columns = slice.columns, .dtype = parameter.type};
  if (parameter.quantization) whole.packed = parameter.quantized_shape();
  std::vector<std::byte> values(whole.value_bytes()), scales(whole.scale_bytes());
  parameter.view.data = values.data();
  parameter.scales.data = scales.data();
  const std::size_t piece_bytes = how & 16 ? 300 : std::size_t{1} << 20;
  PieceReader reader(checkpoint);
  for (const LoadPiece& piece : plan_load(parameters, checkpoint, piece_bytes).pieces)
    reader.read(piece, piece.to, piece.scales_to);

  if (!whole.packed) return;
  const std::size_t row_scales = scales.size() / static_cast<std::size_t>(whole.packed->outputs);
  std::vector<float> weights(static_cast<std::size_t>(whole.packed->inputs));
  for (std::int64_t row = 0; row < whole.packed->outputs; ++row) {
    dequantize_row(*whole.packed, values.data() + row * whole.packed->row_bytes(),
                   scales.data() + static_cast<std::size_t>(row) * row_scales, weights.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  try {
    const Checkpoint checkpoint = open({reinterpret_cast<const char*>(data) + 2, size - 2});
    std::int64_t left = kMaxElements;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      if (tensor.shape.size() != 2 || tensor.shape[0] > kMaxElements) continue;
      if (tensor.shape[1] > left / std::max<std::int64_t>(tensor.shape[0], 1)) continue;
      left -= tensor.shape[0] * tensor.shape[1];
      load(checkpoint, tensor, data[0], data[1]);
    }
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() < 600);
  }
  return 0;
}
