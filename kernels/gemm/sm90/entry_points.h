// Kernels of Hopper that are not in backends.h: the kernel class of all GPUs, or Hopper's own, asks
// for them. Shapes are those that the kernel itself sees (gemm_steps.h); `multiprocessors` are the
// GPU's.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/entry_points.h"

namespace nvllm::kernels::cuda {

// --- invariant GEMV: invariant_gemv.cu -----------------------------------------------------------

// Whether the invariant GEMV can compute such a GEMM, also with RMSNorm as its prologue, and is
// expected to be faster than the kernel of all GPUs. False on another GPU.
bool takes_invariant_gemv_sm90(const GemmShape& shape, int multiprocessors);
// Whether all blocks of such a GEMM, without prologue, run at once and have half of the weight in
// flight before they wait for the previous kernel. A separate norm kernel, which overlaps that,
// then costs as little as one in every block. False on another GPU.
bool loads_early_sm90(const GemmShape& shape, int multiprocessors);
// Enqueues a call whose plan's shape it takes.
void launch_invariant_gemv_sm90(const GemmCall& call, int multiprocessors, cudaStream_t stream);

// --- GEMV with a quantized weight by bulk copies: quantized_gemv.cu ------------------------------

// Enqueues a call planned for the quantized GEMV if this kernel is faster for it; otherwise returns
// false. On Hopper it is for GEMMs of bfloat16 by large weights: gated ones of fp8 or int4, and
// those of fp8 with a norm.
bool enqueue_bulk_gemv(const GemmCall& call, int multiprocessors, cudaStream_t stream);

// --- small-M GEMM with a quantized weight: quantized_small_m.cu ----------------------------------

// With smaller weights, quantizing x to fp8 takes the time that fp8 saves.
inline constexpr std::int64_t kMinFp8Weights = 8 << 20;

// Whether x is multiplied in fp8, too.
inline bool takes_fp8_rows(const GemmShape& shape) {
  return may_quantize_rows(shape) && shape.outputs * shape.inputs >= kMinFp8Weights;
}

// rows: x in fp8, if it is multiplied in fp8, otherwise empty.
void launch_quantized_small_m(const GemmCall& call, const Fp8Rows& rows, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
