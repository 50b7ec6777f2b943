// What changes logits before they are judged: tokens that are out of the question, bias, penalties.
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_rules.h"

namespace nvllm::kernels {

// Of rows whose slot's rules say so (kChangesLogits), in this order:
//   ids that are not allowed, ends while the sequence is shorter than min_length, and the last token of
//   a bad word whose others are the history's last: -infinity
//   + bias
//   repetition penalty: of tokens in the history, positive logits are divided by it, others multiplied
//   - frequency_penalty * how often the token is in the answer, - presence_penalty if it is there
// The history of a row are the tokens before its position; the answer is what comes after the prompt.
struct ApplyPenalties {
  SamplingRows rows;  // with `adjusted`: changed rows go there, and logits stay; otherwise in place
  TensorView lists;   // [slots, words], int32 (kernels/sampling/sampling_rules.h)
  TensorView allowed;      // [slots, words], int32: a bit for each id of the own part
  TensorView history;      // [blocks, block_size], int32
  TensorView block_table;  // [rows, blocks], int32, rows apart
};

// Enqueues it; an Error for arguments that do not fit. Ids that are not of the own part are somebody else's.
void apply_penalties(const ApplyPenalties& args, Stream& stream);
void check_apply_penalties(const ApplyPenalties& args);
// The plain definition, run at once by the caller.
void apply_penalties_reference(const ApplyPenalties& args);

}  // namespace nvllm::kernels
