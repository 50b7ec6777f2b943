#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nvllm {

// "line 3, column 7" of a text's byte; lines, columns and bytes (0 is taken for 1) count from 1.
std::string place_in_text(std::string_view text, std::size_t byte);

}  // namespace nvllm
