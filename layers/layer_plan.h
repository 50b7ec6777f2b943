// The plan of a decoder layer's four GEMMs. They are planned together, since what one leaves undone
// another takes up: an activation, the second half of a deferred norm.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::layers {

// The four GEMMs of a decoder layer, as input of plan_layer.
struct LayerGemms {
  kernels::GemmWeight qkv, output, gate_up, down;
  TensorView attention_norm, mlp_norm;  // weights of the norms before qkv and gate_up
  kernels::Activation activation = kernels::Activation::silu;
  // The MLP consists of gate_up and down. Otherwise these are absent, and the MLP block finds no
  // deferred norm.
  bool mlp = true;
};
struct LayerRequest {
  std::int64_t m = 0, mlp_m = 0;  // rows of the attention block and of the MLP block
  int ranks = 1;                  // with several, a collective sums and norms the GEMMs' results
  // Separate kernels sum and norm them: for norms that GEMMs do not support, or results that are
  // normed before they are added.
  bool unfused_norms = false;
  bool deferred = false;             // the previous GEMM has deferred the attention block's norm
  bool may_defer = false;            // there is memory for deferred norms
  const LayerGemms* next = nullptr;  // the layer that reads the result; nullptr: none, or unknown
};
// A gated activation is the epilogue of gate_up, or otherwise the prologue of down.
struct LayerPlan {
  kernels::GemmPlan qkv, output, gate_up, down;
};

LayerPlan plan_layer(kernels::Gemm& gemm, const LayerGemms& layer, const LayerRequest& request);

}  // namespace nvllm::layers
