// Tokens one after the other, for a parser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/lexer.h"

namespace nvllm::jinja {

class TokenReader {
 public:
  // The last one is `end`, and is never passed.
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& token() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_symbol(std::string_view text) const {
    return token().kind == Token::Kind::symbol && token().text == text;
  }
  bool at_name(std::string_view text) const {
    return token().kind == Token::Kind::name && token().text == text;
  }
  bool accept_symbol(std::string_view text);
  bool accept_name(std::string_view text);
  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  void expect(Token::Kind kind, std::string_view what);
  std::string take_name(std::string_view what);
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace nvllm::jinja
