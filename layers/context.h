// Context: what a forward pass works with. Passed to every layer; nothing of it is global.
#pragma once

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "kernels/gemm/linear.h"
#include "layers/scratch.h"

namespace nvllm::layers {

struct Context {
  Stream& stream;
  kernels::Matmul& matmul;
  Scratch& scratch;
  ipc::Communicator* communicator = nullptr;  // nullptr: there is one rank

  bool alone() const { return communicator == nullptr || communicator->size() == 1; }
};

// What a product reads: rows, and what happens to them first (kernels/gemm/linear.h).
struct Input {
  TensorView x;
  kernels::Linear::Before before = kernels::Linear::Before::nothing;
  TensorView norm_weight{};
  float epsilon = 0;
  kernels::Activation activation = kernels::Activation::silu;
  TensorView scratch{};  // where `before` goes unless it is fused into the product
  kernels::BegunNorm begun{};
  kernels::KvPrefetch ahead{};  // kernels::Linear's

  std::int64_t rows() const { return x.shape[0]; }
};

}  // namespace nvllm::layers
