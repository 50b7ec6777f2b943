// What a forward pass reads first: the tokens, positions and cache slots of its rows, made on the
// device from a few numbers per sequence; and the embeddings of those tokens.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// Sequence s of the step is the one in slot slots[s]. Its rows are query_start[s] to query_start[s
// + 1], at positions from first_position[s] on.
//   Its table gets new blocks: table[slot][first_block[s] + i] = new_blocks[block_start[s] + i].
//   Row r of it: the token is new_tokens[first_token[s] + r], or last_tokens[slot] if
//   first_token[s] is negative. Its slot in the cache is the one that the table has for its
//   position; the token itself is written there, too (history). With a block map, the keys and
//   values of block b lie in block block_map[b], or are not stored if that is negative.
// A sequence without a slot (negative) is padding: its rows have token 0 and no slot in the cache,
// and nothing is written for it. Sequences have different slots; blocks are added in order, and no
// block is named before it is there.
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
  // The maximum of a sequence's rows: a bound for all values that a captured graph will see.
  std::int64_t max_query_rows = 0;

  // What the device remembers, int32.
  TensorView last_tokens;  // [slots]
  TensorView table;        // [slots, blocks of the longest sequence]
  TensorView history;      // [blocks, block_size]: the tokens in the cache
  TensorView block_map{};  // [blocks]; data == nullptr: every block is stored in itself

  // Results.
  TensorView tokens;        // [rows], int32
  TensorView positions;     // [rows], int32
  TensorView slot_mapping;  // [rows], int64: slot in the cache, -1: none (attention/kv_view.h)
  TensorView kv_length;     // [sequences], int32: tokens of each with these rows; 0 for padding
  TensorView block_table;   // [sequences, as table], int32: as many entries as kv_length needs
};

// Enqueues it. All tensors are dense, with any number of sequences and rows. Throws an Error that
// names the argument.
void step_input(const StepInput& args, Stream& stream);
void check_step_input(const StepInput& args);
void step_input_reference(const StepInput& args);

// out[r] = table[ids[r] - first_id] * scale, in float32, rounded once, or zeros where the table has
// no such row: a rank that holds a part of a vocabulary gives its part of the sum over the ranks.
struct Embedding {
  TensorView out;    // [rows, columns]
  TensorView ids;    // [rows], int32
  TensorView table;  // [entries, columns]
  std::int64_t first_id = 0;
  float scale = 1;  // 1: rows are copied, bit by bit
};

// Enqueues it. out and table are dense and of one type (float32, bfloat16 or float16), with any
// number of rows, columns and entries. Throws an Error that names the argument.
void embedding(const Embedding& args, Stream& stream);
void check_embedding(const Embedding& args);
void embedding_reference(const Embedding& args);

}  // namespace nvllm::kernels
