// What both formats need to describe a tensor, and to say what is wrong with it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/checkpoint.h"

namespace nvllm::model {

// The bytes of a tensor of this shape; nullopt: more than 2^63, or rows that are not whole blocks.
std::optional<std::uint64_t> bytes_of(Encoding encoding, std::span<const std::int64_t> shape);

// "[2048, 1024]"
std::string shape_text(std::span<const std::int64_t> shape);

// Text of a file, fit for a message: one line, not too long.
std::string printable(std::string_view text);

}  // namespace nvllm::model
