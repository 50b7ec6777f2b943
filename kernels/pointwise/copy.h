// Small copies that a step makes on the device: of numbers from the host, of the KV-cache entries
// that a decode step stored, and of a step's results.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Writes words to device memory in the stream's order. They travel with the call: `words`, ordinary
// memory that is not pinned, may be freed when it returns, and nobody waits. Meant for the sampling
// parameters of slots and the numbers of a step. It must not be captured in a graph, which would
// keep the words.
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

// Copies the keys and values of the last token of each sequence, number kv_length[s] - 1, from one
// cache to the same position of another: what a decode step stored on the device goes to host
// memory as part of a captured graph. Sequences of length 0 are skipped.
struct CopyLastKv {
  KvView to;             // its block table is not read
  KvView from;           // of the same type and shape; both have dense tokens
  TensorView kv_length;  // [sequences], int32
};

// Enqueues it. On a GPU `to` may be pinned host memory. Throws an Error that names the argument.
void copy_last_kv(const CopyLastKv& args, Stream& stream);
void check_copy_last_kv(const CopyLastKv& args);
void copy_last_kv_reference(const CopyLastKv& args);

// Copies words to an entry of a ring buffer. The entry's index lies on the device: so a captured
// graph, which does the same each time, leaves its results where nobody still reads those of an
// earlier run.
struct CopyToRing {
  TensorView words;  // [words], int32
  TensorView index;  // [1], int32: below the number of entries
  TensorView ring;   // [entries, as many words or more], int32
};

// Enqueues it. All tensors are dense, with any number of words. Throws an Error that names the
// argument.
void copy_to_ring(const CopyToRing& args, Stream& stream);
void check_copy_to_ring(const CopyToRing& args);
void copy_to_ring_reference(const CopyToRing& args);

}  // namespace nvllm::kernels
