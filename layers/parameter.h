// Parameter: one rank's piece of memory that a layer reads its weights from, and which slices of
// which tensors of a checkpoint belong in it. Layers declare them; memory and a loader are found
// for them later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/tensor_view.h"
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

struct Parameter {
  std::string name;  // "layers.0.attention.qkv.weight"
  // Of this rank's part: [rows, columns] or [elements]; may be empty of elements.
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // cover it exactly, without overlap

  TensorView view;  // the memory; data == nullptr until it has been bound

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

  // `tensor`: its weight in checkpoints, "model.norm.weight"
  RmsNorm(const std::string& name, const std::string& tensor, std::int64_t columns, float epsilon)
      : weight{name + ".weight", {columns}, {}, {}}, epsilon(epsilon) {
    weight.slices = {{tensor, {columns}, {0, columns}, {0, 1}, 0}};
  }

  void declare(std::vector<Parameter*>& all) { all.push_back(&weight); }
};

}  // namespace nvllm::layers
