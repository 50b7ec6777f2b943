#include "model/quantization.h"

namespace nvllm::model {

void decode(Encoding encoding, const std::byte* from, std::int64_t elements, DType to, void* out) {
  decode_plain(encoding, from, elements, to, out);
}

}  // namespace nvllm::model
