// The inputs of a forward pass: tokens, positions and cache slots of its rows, computed on the
// device from a few numbers per sequence; and the embeddings of those tokens.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// Sequence s of the step is in slot slots[s]. Its rows are query_start[s] to query_start[s + 1], at
// positions from first_position[s] on.
//   Its table receives new blocks:
//     table[slot][first_block[s] + i] = new_blocks[block_start[s] + i].
//   Row r of it: the token is new_tokens[first_token[s] + r], or last_tokens[slot] if
//   first_token[s] is negative. Its cache slot follows from the table and its position; the token
//   itself is written there, too (history). With a block map, the keys and values of block b are
//   stored in block block_map[b], or not at all if that is negative.
// A sequence without a slot (negative) is padding: its rows have token 0 and no cache slot, and
// nothing is written for it. Sequences have different slots; blocks are added in order, before they
// are used.
struct StepInput {
  // Per sequence, int32.
  TensorView slots;           // [sequences]
  TensorView query_start;     // [sequences + 1], ascending from 0 to rows
  TensorView first_position;  // [sequences]
  TensorView first_token;     // [sequences]
  TensorView first_block;     // [sequences]
  TensorView block_start;     // [sequences + 1], ascending
  TensorView new_tokens;      // [any number]
  TensorView new_blocks;      // [any number]
  // Max. rows per sequence: an upper bound for every replay of a captured graph.
  std::int64_t max_query_rows = 0;

  // State that persists on the device, int32.
  TensorView last_tokens;  // [slots]
  TensorView table;        // [slots, blocks of the longest sequence]
  TensorView history;      // [blocks, block_size]: the tokens in the cache
  TensorView block_map{};  // [blocks]; data == nullptr: every block is stored in itself

  // Results.
  TensorView tokens;        // [rows], int32
  TensorView positions;     // [rows], int32
  TensorView slot_mapping;  // [rows], int64: slot in the cache, -1: none (attention/kv_view.h)
  TensorView kv_length;     // [sequences], int32: tokens including these rows; 0 for padding
  TensorView block_table;   // [sequences, as table], int32: the entries that kv_length needs
};

// All tensors are dense, with any number of sequences and rows. Throws an Error that names the
// argument.
void step_input(const StepInput& args, Stream& stream);
void check_step_input(const StepInput& args);
void step_input_reference(const StepInput& args);

// out[r] = table[ids[r] - first_id] * scale, in float32, rounded once, or zeros if the table has no
// such row: a rank with a part of a vocabulary yields its summand of the sum over the ranks.
struct Embedding {
  TensorView out;    // [rows, columns]
  TensorView ids;    // [rows], int32
  TensorView table;  // [entries, columns]
  std::int64_t first_id = 0;
  float scale = 1;  // 1: rows are copied bit-exactly
};

// out and table are dense and of one type (float32, bfloat16 or float16), with any number of rows,
// columns and entries. Throws an Error that names the argument.
void embedding(const Embedding& args, Stream& stream);
void check_embedding(const Embedding& args);

}  // namespace nvllm::kernels
