// Small copies on the device within a step: of integers from the host, of the KV-cache entries that
// a decode step stored, and of a step's results.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Writes words to device memory in stream order. The words are copied by the call: `words`,
// ordinary memory that is not pinned, may be freed when it returns, without any wait. Meant for the
// sampling parameters of slots and the step input. Must not be captured in a graph, which would
// replay the same words.
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

// Copies the keys and values of the last token of each sequence, kv_length[s] - 1, from one cache
// to the same position of another: entries that a decode step stored on the device go to host
// memory as part of a captured graph. Sequences of length 0 are skipped.
struct CopyLastKv {
  KvView to;             // its block table is not read
  KvView from;           // of the same type and shape; both have dense tokens
  TensorView kv_length;  // [sequences], int32
};

// On a GPU `to` may be pinned host memory. Throws an Error that names the argument.
void copy_last_kv(const CopyLastKv& args, Stream& stream);
void check_copy_last_kv(const CopyLastKv& args);

// Copies words to an entry of a ring buffer. The entry's index is in device memory, so that each
// replay of a captured graph can write to an entry that is not being read.
struct CopyToRing {
  TensorView words;  // [words], int32
  TensorView index;  // [1], int32: below the number of entries
  TensorView ring;   // [entries, as many words or more], int32
};

// All tensors are dense, with any number of words. Throws an Error that names the argument.
void copy_to_ring(const CopyToRing& args, Stream& stream);
void check_copy_to_ring(const CopyToRing& args);
void copy_to_ring_reference(const CopyToRing& args);

}  // namespace nvllm::kernels
