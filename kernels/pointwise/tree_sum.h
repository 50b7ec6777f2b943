// A sum of float32 tensors in a given order: that of a binary tree, of which some nodes may be
// absent.
#pragma once

#include <array>
#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out = the sum of the sources [+ bias], in float32, rounded once.
//
// The order is defined by a stack: each source is pushed in turn, and after source i the top two
// values are replaced by their sum, merges[i] times. At the end one value is left.
struct TreeSum {
  static constexpr int kMaxSources = 8;

  TensorView out;      // [rows, columns], dense: float32, bfloat16 or float16
  TensorView sources;  // [blocks * rows, columns], float32, dense: blocks with the rows of out
  int count = 0;       // of sources, at least 1
  std::array<std::uint8_t, kMaxSources> blocks{};  // the block of each source
  std::array<std::uint8_t, kMaxSources> merges{};
  TensorView bias{};  // [columns], a float type; data == nullptr: none
};

// Throws an Error that names the argument that does not fit.
void tree_sum(const TreeSum& args, Stream& stream);
void check_tree_sum(const TreeSum& args);

}  // namespace nvllm::kernels
