// The kernels of Hopper for attention with bfloat16 and float16, as the choice among the kernels of
// all GPUs (../sm80/attention.cu) calls them. Those that return bool return false, with
// nothing enqueued, for what they do not support.
#pragma once

#include <cuda_runtime_api.h>

namespace nvllm::kernels {

struct Attention;

namespace cuda {

// T: as in ../sm80/attention_params.cuh. False on other GPUs, too.
template <typename T, bool kWindow>
bool attention_prefill_sm90(const Attention& args, cudaStream_t stream);
// Up to kSm90DecodeRows packed rows of each sequence. Call it on Hopper only.
template <typename T, bool kWindow>
bool attention_decode_sm90(const Attention& args, cudaStream_t stream);
inline constexpr int kSm90DecodeRows = 16;
// One row of each sequence with the bits of attention_prefill_sm90() (invariant_decode.cu). False
// on other GPUs, too.
bool attention_invariant_decode_sm90(const Attention& args, cudaStream_t stream);

}  // namespace cuda
}  // namespace nvllm::kernels
