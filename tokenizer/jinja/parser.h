// A template's text as a syntax tree.
#pragma once

#include <string_view>

#include "tokenizer/jinja/syntax.h"

namespace nvllm::jinja {

// Throws an Error that says where and what. Valid UTF-8.
Block parse(std::string_view source);

}  // namespace nvllm::jinja
