// Rows of activations in fp8, written by fused kernels: RMSNorms and gated activations that are
// prologues of GEMMs with fp8 x.
#pragma once

#include "kernels/gemm/sm80/quantized.h"
#include "kernels/pointwise/activation.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::cuda {

// Whether quantize_normed_rows() or quantize_activated_rows() supports a prologue: rows consist of
// whole vectors at multiples of 16 bytes.
bool makes_fp8_rows(const RmsNorm& norm);
bool makes_fp8_rows(const GatedActivation& activation);

// The bits are those of the separate operation, whose `out` is not written, followed by
// quantize_rows(). trigger_early: see common/sm80/launch.cuh.
void quantize_normed_rows(const RmsNorm& norm, const Fp8Rows& out, Stream& stream,
                          bool trigger_early);
void quantize_activated_rows(const GatedActivation& activation, const Fp8Rows& out, Stream& stream,
                             bool trigger_early);

}  // namespace nvllm::kernels::cuda
