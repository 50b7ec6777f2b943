// Changes logits before sampling: banned tokens, bias and penalties.
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

// Changes the rows whose slot has kChangesLogits, in this order:
//   -infinity for ids that are not allowed, for end tokens while the sequence is shorter than
//   min_length, and for the last token of a bad word whose other tokens end the history
//   + bias
//   repetition penalty: positive logits of tokens in the history are divided by it, others
//   multiplied
//   - frequency_penalty * count of the token in the output, - presence_penalty if it occurs there
// The history of a row is the tokens before its position; the output is the history after the
// prompt.
struct ApplyPenalties {
  // with changed_logits: receives the changed rows; otherwise they change in place
  SamplingRows rows;
  TensorView lists;        // [slots, words], int32 (kernels/sampling/sampling_params.h)
  TensorView allowed;      // [slots, words], int32: one bit per id of this rank's part
  TensorView history;      // [blocks, block_size], int32
  TensorView block_table;  // [rows, blocks], int32, any row stride
};

// Ids outside this rank's part of the vocabulary are ignored. Throws an Error for arguments that do
// not fit.
void apply_penalties(const ApplyPenalties& args, Stream& stream);
void check_apply_penalties(const ApplyPenalties& args);

}  // namespace nvllm::kernels
