// decode() of model/checkpoint.h, and its reference.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/checkpoint.h"

namespace nvllm::model {

// What decode() does, one element after the other; by this the fast version is judged.
void decode_plain(Encoding encoding, const std::byte* from, std::int64_t elements, DType to,
                  void* out);

}  // namespace nvllm::model
