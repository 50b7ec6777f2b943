#include "tokenizer/jinja/token_reader.h"

#include "base/error.h"

namespace nvllm::jinja {
namespace {

std::string shown(const Token& token) {
  switch (token.kind) {
    case Token::Kind::end: return "the end of the template";
    case Token::Kind::block_end: return "%}";
    case Token::Kind::print_end: return "}}";
    case Token::Kind::text:
    case Token::Kind::print_begin:
    case Token::Kind::block_begin: return "text";
    default: return str("'", token.text, "'");
  }
}

}  // namespace

bool TokenReader::accept_symbol(std::string_view text) {
  if (!at_symbol(text)) return false;
  take();
  return true;
}

bool TokenReader::accept_name(std::string_view text) {
  if (!at_name(text)) return false;
  take();
  return true;
}

void TokenReader::expect_symbol(std::string_view text) {
  if (!accept_symbol(text)) fail_expected(str("'", text, "'"));
}

void TokenReader::expect_name(std::string_view text) {
  if (!accept_name(text)) fail_expected(str("'", text, "'"));
}

void TokenReader::expect(Token::Kind kind, std::string_view what) {
  if (token().kind != kind) fail_expected(what);
  take();
}

std::string TokenReader::take_name(std::string_view what) {
  if (token().kind != Token::Kind::name) fail_expected(what);
  return take().text;
}

void TokenReader::fail_expected(std::string_view what) const {
  fail_at(token().at, str("expected ", what, ", found ", shown(token())));
}

}  // namespace nvllm::jinja
