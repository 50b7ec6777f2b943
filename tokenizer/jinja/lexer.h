// A template's text in pieces: what is printed as it is, and the tokens inside {{ }} and {% %}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/syntax.h"

namespace nvllm::jinja {

struct Token {
  enum class Kind : unsigned char {
    text,         // outside of all brackets
    print_begin,  // {{
    print_end,    // }}
    block_begin,  // {%
    block_end,    // %}
    name,
    string,  // without quotes, escapes resolved
    integer,
    real,
    symbol,  // an operator or bracket
    end,
  };
  Kind kind;
  std::string text;
  Position at;
};

// With Jinja's trim_blocks and lstrip_blocks, as Hugging Face renders chat templates. Valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

// Throws an Error that says where: "line 3, column 14: what".
[[noreturn]] void fail_at(Position at, const std::string& what);

}  // namespace nvllm::jinja
