// What a forward pass of many sequences reads, row by row, made on the device from a few numbers per
// sequence and what the device remembers of each: its blocks and its last token.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// Sequence s of the step is the one in slot slots[s]; its rows are query_start[s] to query_start[s + 1],
// at positions from first_position[s] on.
//   Its table gets new blocks: table[slot][first_block[s] + i] = new_blocks[block_start[s] + i].
//   Row r of it: the token is new_tokens[first_token[s] + r], or last_tokens[slot] if first_token[s] is
//   negative; its place in the cache is the one that the table has for its position, where the token itself
//   is written down, too (history). With homes, block b's keys and values have their places in block
//   homes[b], or none if that is negative.
// A sequence without a slot (negative) is padding: its rows have token 0 and no place, and nothing is
// written for it. Sequences have different slots; blocks are added in order, and no block is named before
// it is there.
struct StepInput {
  // Of each sequence, int32.
  TensorView slots;           // [sequences]
  TensorView query_start;     // [sequences + 1], ascending from 0 to rows
  TensorView first_position;  // [sequences]
  TensorView first_token;     // [sequences]
  TensorView first_block;     // [sequences]
  TensorView block_start;     // [sequences + 1], ascending
  TensorView new_tokens;      // [any number]
  TensorView new_blocks;      // [any number]
  std::int64_t max_query_rows =
      0;  // of a sequence: a bound for all values a captured graph will see

  // What the device remembers, int32.
  TensorView last_tokens;  // [slots]
  TensorView table;        // [slots, blocks of the longest sequence]
  TensorView history;      // [blocks, block_size]: the tokens in the cache
  TensorView block_map{};      // [blocks]; data == nullptr: every block is its own

  // Results.
  TensorView tokens;     // [rows], int32
  TensorView positions;  // [rows], int32
  TensorView places;     // [rows], int64: in the cache; -1: none (kernels/attention/kv_view.h)
  TensorView kv_length;  // [sequences], int32: tokens of each, these rows included; 0 for padding
  TensorView
      block_table;  // [sequences, as table], int32: as many entries of each as kv_length needs
};

// Enqueues it. All tensors dense; any number of sequences and rows, also 0; otherwise an Error that names
// the argument.
void step_input(const StepInput& args, Stream& stream);

void check_step_input(const StepInput& args);

// The plain definition, run at once by the caller.
void step_input_reference(const StepInput& args);

}  // namespace nvllm::kernels
