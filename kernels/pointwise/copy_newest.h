// The newest token of each sequence from one cache to another: what a decode step stored on the device goes
// to the same place in host memory, as part of a captured graph.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Token kv_length[s] - 1 of sequence s, keys and values, for each sequence that has any.
struct CopyLastKv {
  KvView to;             // its block table is not read
  KvView from;           // of the same type and shape; both have dense tokens
  TensorView kv_length;  // [sequences], int32
};

// Enqueues it. On a GPU `to` may be pinned host memory. An Error that names the argument.
void copy_last_kv(const CopyLastKv& args, Stream& stream);

void check_copy_last_kv(const CopyLastKv& args);

// The plain definition, run at once by the caller.
void copy_last_kv_reference(const CopyLastKv& args);

}  // namespace nvllm::kernels
