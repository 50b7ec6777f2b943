// Parameter: one rank's tensor of weights, and the slices of checkpoint tensors that fill it.
// Layers declare parameters; memory is bound and a loader fills it later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/tensor_view.h"
#include "kernels/gemm/quantized_weight.h"
#include "layers/partition.h"

namespace nvllm::layers {

// A rectangle of a checkpoint tensor, by its Hugging Face name, and its destination rows.
struct Slice {
  std::string tensor;               // "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // of the whole tensor: [rows, columns] or [elements]
  Range rows;                       // for 1-D tensors: elements
  Range columns;                    // for 1-D tensors: [0, 1)
  std::int64_t to_row = 0;          // the parameter's row (element) where the slice starts
};

// The storage of a GEMM weight whose type is not the model's.
struct Quantization {
  kernels::WeightFormat format = kernels::WeightFormat::fp8;
  std::int64_t group = kernels::kFp8Group;
  bool weight_only = false;  // GEMMs keep activations in the model's type
  bool blocks = false;       // one scale per block of 128 outputs (kernels::GemmWeight)

  bool operator==(const Quantization&) const = default;
};

// A slice of a weight's inputs that begins at a multiple of this may be quantized in any format:
// quantization groups have 16 to 128 inputs.
inline constexpr std::int64_t kQuantizedCut = 128;

// Which weights may stay quantized: those that only GEMMs read. `vocabulary`: an embedding table,
// only in the checkpoint's own format and if the backend supports lookups in quantized tables.
enum class MayBeQuantized : std::uint8_t { no, yes, vocabulary };

struct Parameter {
  std::string name;  // "layers.0.attention.qkv.weight"
  // This rank's shape: [rows, columns] or [elements]; may have no elements.
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // cover the parameter exactly, without overlap

  MayBeQuantized may_be_quantized = MayBeQuantized::no;
  // With Shard::tp_invariant: some rank's part may have a number of rows that is not a multiple of
  // 8 (kernels::GemmWeight).
  bool unaligned_shards = false;
  std::optional<DType> fixed_type = std::nullopt;           // element type, if not the model's
  std::optional<Quantization> quantization = std::nullopt;  // decided before memory is bound

  // The memory; data == nullptr until bound. The raw bytes if quantized.
  TensorView view;
  TensorView scales;         // if quantized
  DType type = DType::bf16;  // the model's type, that of activations

  // Only if quantized.
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

  // tensor: its weight in checkpoints, "model.norm.weight"
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
