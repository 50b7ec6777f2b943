// Parameter: one rank's piece of memory that a layer reads its weights from, and which slices of
// which tensors of a checkpoint belong in it. Layers declare them; memory and a loader are found
// for them later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/tensor_view.h"
#include "kernels/gemm/quantized_weight.h"
#include "layers/partition.h"

namespace nvllm::layers {

// A rectangle of a tensor in a checkpoint, by Hugging Face's names, and where its rows go.
struct Slice {
  std::string tensor;               // "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // of the whole tensor: [rows, columns] or [elements]
  Range rows;                       // of a tensor of one dimension: its elements
  Range columns;                    // of a tensor of one dimension: [0, 1)
  std::int64_t to_row = 0;          // the parameter's row (element) that takes the slice's first
};

// How a GEMM's weight is kept that is not in the model's type.
struct Quantization {
  kernels::WeightFormat format = kernels::WeightFormat::fp8;
  std::int64_t group = kernels::kFp8Group;
  bool weight_only = false;  // GEMMs leave activations as they are
  bool blocks = false;       // scales of 128 outputs are the same (kernels::GemmWeight)

  bool operator==(const Quantization&) const = default;
};

// A part of a weight's inputs may be quantized in any format if it begins at a multiple of this:
// groups of inputs have 16 to 128.
inline constexpr std::int64_t kQuantizedCut = 128;

// Which weights may be kept quantized: those that only GEMMs read; a vocabulary's rows only as the
// checkpoint has them, and where the backend looks rows up in quantized tables.
enum class MayBeQuantized : std::uint8_t { no, yes, vocabulary };

struct Parameter {
  std::string name;  // "layers.0.attention.qkv.weight"
  // Of this rank's part: [rows, columns] or [elements]; may be empty of elements.
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // cover it exactly, without overlap

  MayBeQuantized may_be_quantized = MayBeQuantized::no;
  // With Shard::tp_invariant: some rank may have a part whose rows are no multiple of 8
  // (kernels::GemmWeight).
  bool uneven_parts = false;
  std::optional<DType> fixed_type = std::nullopt;  // of its elements, where not the model's
  std::optional<Quantization> quantization = std::nullopt;  // decided before memory is bound

  // The memory; data == nullptr until it has been bound. Of a quantized parameter, its bytes.
  TensorView view;
  TensorView scales;         // of a quantized parameter
  DType type = DType::bf16;  // of activations: the model's

  // Of a quantized parameter.
  kernels::QuantizedShape quantized_shape() const {
    return {quantization->format, shape[0], shape[1], quantization->group};
  }

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
  }
};

// RMSNorm as a layer: its weight, whole on every rank.
struct RmsNorm {
  Parameter weight;  // [columns]
  float epsilon;
  float weight_offset;  // kernels::RmsNorm

  // `tensor`: its weight in checkpoints, "model.norm.weight"
  RmsNorm(const std::string& name, const std::string& tensor, std::int64_t columns, float epsilon,
          float weight_offset = 0)
      : epsilon(epsilon), weight_offset(weight_offset) {
    weight.name = name + ".weight";
    weight.shape = {columns};
    weight.slices = {{tensor, {columns}, {0, columns}, {0, 1}, 0}};
  }

  void declare(std::vector<Parameter*>& all) { all.push_back(&weight); }
};

}  // namespace nvllm::layers
