// A sum of float32 tensors whose order is given: a binary tree's, whichever of its nodes are there.
#pragma once

#include <array>
#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out = the sum of the sources [+ bias], in float32, rounded once.
//
// The order is a stack's: each source is pushed, one after the other, and after source i the two
// values on top are replaced by their sum, merges[i] times. In the end one value is left.
struct TreeSum {
  static constexpr int kMaxSources = 8;

  TensorView out;      // [rows, columns], dense: float32, bfloat16 or float16
  TensorView sources;  // [blocks * rows, columns], float32, dense: blocks of as many rows as out's
  int count = 0;       // of sources, at least 1
  std::array<std::uint8_t, kMaxSources> blocks{};  // which block each one is
  std::array<std::uint8_t, kMaxSources> merges{};
  TensorView bias{};  // [columns], a float type; data == nullptr: none
};

// Enqueues it. Throws an Error that names the argument that does not fit.
void tree_sum(const TreeSum& args, Stream& stream);
void check_tree_sum(const TreeSum& args);

}  // namespace nvllm::kernels
