// decode_plain(): the reference for decode(), for tests and benchmarks. It goes through the
// elements one after the other, and both give the same bits.
#pragma once

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

void decode_plain(Encoding encoding, const std::byte* from, std::int64_t elements, DType to,
                  void* out);

}  // namespace nvllm::model
