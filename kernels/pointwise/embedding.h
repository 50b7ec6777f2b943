// Embedding: rows of a table, by number.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out[r] = table[ids[r] - first_id], or zeros where the table has no such row: a rank that holds
// part of a vocabulary gives its part of the sum over the ranks.
struct Embedding {
  TensorView out;    // [rows, columns]
  TensorView ids;    // [rows], int32
  TensorView table;  // [entries, columns]
  std::int64_t first_id = 0;
};

// Enqueues it. out and table dense, of one type (float32, bfloat16 or float16); any number of rows,
// columns and entries, also 0; otherwise an Error that names the argument.
void embedding(const Embedding& args, Stream& stream);

void check_embedding(const Embedding& args);

// The plain definition, run at once by the caller.
void embedding_reference(const Embedding& args);

}  // namespace nvllm::kernels
