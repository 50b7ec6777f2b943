// Experts that a checkpoint keeps in one tensor per layer, as gpt-oss and Qwen3.5 do. gpt-oss':
//
//   experts.gate_up_proj         [E, H, 2 I]          floats, columns of gate and up alternating
//   experts.gate_up_proj_blocks  [E, 2 I, H/32, 16]   U8 instead: MXFP4, two inputs in a byte
//   experts.gate_up_proj_scales  [E, 2 I, H/32]       U8: their scales
//   experts.gate_up_proj_bias    [E, 2 I]
//   experts.down_proj...         the same, with I inputs and H outputs that do not alternate
//
// Qwen3.5's have the same names, but no biases, which distinguishes the two:
//
//   experts.gate_up_proj         [E, 2 I, H]          floats, all rows of gate, then those of up
//   experts.down_proj            [E, H, I]
//
// In GGUF files, whose tensor names contain a '*' for the expert's number at this point
// (model/checkpoint/gguf_family.h):
//
//   experts.*.gate_proj.weight   [E, I, H]            of any type; up_proj alike
//   experts.*.gate_up_proj.weight [E, 2 I, H]         instead: the rows of gate, then those of up
//   experts.*.down_proj.weight   [E, H, I]
//   experts.*.gate_proj.bias     [E, I]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

// Replaces these tensors by those of each expert: "experts.3.gate_proj.weight" [I, H],
// "experts.3.gate_proj.bias" [I] and so on, as in other models. Throws an Error that names what is
// missing or does not fit.
std::vector<StoredTensor> split_experts(std::vector<StoredTensor> tensors,
                                        std::span<const CheckpointFile> files);

// The same for a GGUF file with this many experts.
std::vector<StoredTensor> split_gguf_experts(std::vector<StoredTensor> tensors,
                                             std::span<const CheckpointFile> files,
                                             std::int64_t experts);

}  // namespace nvllm::model
