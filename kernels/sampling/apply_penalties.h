// What changes logits before sampling: banned tokens, bias and penalties.
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

// Changes the rows whose slot's flags say so (kChangesLogits), in this order:
//   -infinity for ids that are not allowed, for end tokens while the sequence is shorter than
//   min_length, and for the last token of a bad word whose other tokens end the history
//   + bias
//   repetition penalty: positive logits of tokens in the history are divided by it, others
//   multiplied
//   - frequency_penalty * how often the token is in the answer, - presence_penalty if it is there
// The history of a row are the tokens before its position; the answer is what comes after the
// prompt.
struct ApplyPenalties {
  SamplingRows rows;   // with changed_logits: changed rows go there; otherwise they change in place
  TensorView lists;    // [slots, words], int32 (kernels/sampling/sampling_params.h)
  TensorView allowed;  // [slots, words], int32: a bit for each id of the own part
  TensorView history;  // [blocks, block_size], int32
  TensorView block_table;  // [rows, blocks], int32, may have gaps
};

// Enqueues it. Ids outside the own part of the vocabulary are ignored. Throws an Error for
// arguments that do not fit.
void apply_penalties(const ApplyPenalties& args, Stream& stream);
void check_apply_penalties(const ApplyPenalties& args);

}  // namespace nvllm::kernels
