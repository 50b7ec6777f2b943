// Grouped GEMMs (Gemm::run_grouped()): groups of rows, each by a weight of its own.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels {

// GEMMs of one shape with their own rows each, like a mixture's experts: rows [start[n], start[n +
// 1]) of x by group n's weight, into the same rows of out. A group without rows costs nothing.
struct GroupedGemm {
  GemmWeight weight;  // of all groups, concatenated: [groups * outputs, inputs]
  // [groups + 1], int32, ascending from 0 to M; read on the device.
  TensorView start;
  TensorView out;  // [M, outputs], dense; with a gated activation [M, outputs / 2]
  TensorView x;    // [M, inputs], dense; with source_rows [any number, inputs]

  // [M], int32: row n reads row source_rows[n] of x; data == nullptr: row n.
  TensorView source_rows{};
  TensorView gathered{};  // [at least M, inputs]: output of a separate gather kernel

  Epilogue epilogue = Epilogue::none;  // a gated activation has gate rows, then up rows, per group
  Activation activation = Activation::silu;
  float limit = 0;       // GatedActivation::limit
  TensorView gate_up{};  // [at least M, outputs]: input of a separate activation kernel

  std::int64_t m() const { return out.shape[0]; }
  std::int64_t groups() const { return start.shape[0] - 1; }
  std::int64_t outputs() const { return weight.outputs() / groups(); }
};

// The parts of a grouped GEMM that its kernel fuses; separate kernels run the rest.
struct GroupedFusion {
  bool gather = false, epilogue = false;
};

// The checks of run_grouped().
void check_grouped_gemm(const GroupedGemm& grouped);

}  // namespace nvllm::kernels
