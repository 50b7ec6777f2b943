#include "model/stored_tensor.h"

#include "base/check.h"

namespace nvllm::model {

const char* name_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::f32: return "F32";
    case Encoding::f16: return "F16";
    case Encoding::bf16: return "BF16";
    case Encoding::q8_0: return "Q8_0";
    case Encoding::q4_0: return "Q4_0";
    case Encoding::q4_1: return "Q4_1";
    case Encoding::q5_0: return "Q5_0";
    case Encoding::q5_1: return "Q5_1";
    case Encoding::q4_k: return "Q4_K";
    case Encoding::q5_k: return "Q5_K";
    case Encoding::q6_k: return "Q6_K";
  }
  return "?";
}

std::int64_t block_elements(Encoding encoding) {
  switch (encoding) {
    case Encoding::f32:
    case Encoding::f16:
    case Encoding::bf16: return 1;
    case Encoding::q8_0:
    case Encoding::q4_0:
    case Encoding::q4_1:
    case Encoding::q5_0:
    case Encoding::q5_1: return 32;
    case Encoding::q4_k:
    case Encoding::q5_k:
    case Encoding::q6_k: return 256;
  }
  return 1;
}

std::int64_t block_bytes(Encoding encoding) {
  switch (encoding) {
    case Encoding::f32: return 4;
    case Encoding::f16:
    case Encoding::bf16: return 2;
    case Encoding::q8_0: return 2 + 32;
    case Encoding::q4_0: return 2 + 16;
    case Encoding::q4_1: return 4 + 16;
    case Encoding::q5_0: return 2 + 4 + 16;
    case Encoding::q5_1: return 4 + 4 + 16;
    case Encoding::q4_k: return 4 + 12 + 128;
    case Encoding::q5_k: return 4 + 12 + 32 + 128;
    case Encoding::q6_k: return 128 + 64 + 16 + 2;
  }
  return 1;
}

std::int64_t StoredTensor::stored_row(std::int64_t row) const {
  if (rotary_heads == 0) return row;
  // Of a head of d rows, GGUF keeps 0, d/2, 1, d/2 + 1, ...
  const std::int64_t d = shape[0] / rotary_heads;
  const std::int64_t in_head = row % d;
  const std::int64_t pair = in_head % (d / 2);
  return row - in_head + 2 * pair + (in_head >= d / 2 ? 1 : 0);
}

std::uint64_t StoredTensor::row_bytes() const {
  const std::int64_t elements = shape.size() < 2 ? 1 : shape.back();
  NVLLM_CHECK(elements % block_elements(encoding) == 0, name, ": rows of ", elements);
  return static_cast<std::uint64_t>(elements / block_elements(encoding) * block_bytes(encoding));
}

std::optional<std::uint64_t> bytes_of(Encoding encoding, std::span<const std::int64_t> shape) {
  const std::int64_t block = block_elements(encoding);
  const std::int64_t row = shape.empty() ? 1 : shape.back();
  if (row % block != 0) return std::nullopt;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(row / block, block_bytes(encoding), &bytes)) return std::nullopt;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string line(text.substr(0, kLongest));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kLongest ? line + "..." : line;
}

}  // namespace nvllm::model
