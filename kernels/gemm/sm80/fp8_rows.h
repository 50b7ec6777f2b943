// Rows of activations in fp8, by the kernels that make them: RMSNorms and gated activations that
// are prologues of GEMMs which read such rows.
#pragma once

#include "kernels/gemm/sm80/quantized.h"
#include "kernels/pointwise/activation.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::cuda {

// Whether quantize_normed_rows() or quantize_activated_rows() can do a prologue: rows are whole
// vectors at multiples of 16 bytes.
bool makes_fp8_rows(const RmsNorm& norm);
bool makes_fp8_rows(const GatedActivation& activation);

// The bits are those of the operation itself, whose `out` they leave alone, and quantize_rows().
// next_comes_early: see common/sm80/launch.cuh.
void quantize_normed_rows(const RmsNorm& norm, const Fp8Rows& out, Stream& stream,
                          bool next_comes_early);
void quantize_activated_rows(const GatedActivation& activation, const Fp8Rows& out, Stream& stream,
                             bool next_comes_early);

}  // namespace nvllm::kernels::cuda
