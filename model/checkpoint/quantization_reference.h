// decode_plain(): the reference of decode(), for tests and benchmarks. It processes one element at
// a time; both produce the same bits.
#pragma once

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

void decode_plain(Encoding encoding, const std::byte* from, std::int64_t elements, DType to,
                  void* out);

}  // namespace nvllm::model
