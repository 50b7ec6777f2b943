// A copy to one of several places, whose number lies on the device: so a captured graph, which does the same each
// time, leaves what it made where nobody reads yet what it made before.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

struct CopyToRing {
  TensorView words;   // [words], int32
  TensorView place;   // [1], int32: below the number of places
  TensorView places;  // [places, as many words or more], int32
};

// Enqueues it. All tensors dense; any number of words, also 0; otherwise an Error that names the argument.
void copy_to_ring(const CopyToRing& args, Stream& stream);

void check_copy_to_ring(const CopyToRing& args);

// The plain definition, run at once by the caller.
void copy_to_ring_reference(const CopyToRing& args);

}  // namespace nvllm::kernels
