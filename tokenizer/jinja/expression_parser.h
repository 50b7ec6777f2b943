// The part of the parser for expressions; the rest in parser.cc derives from it.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/syntax.h"

namespace nvllm::jinja {

// A cursor over a template's tokens.
class TokenReader {
 public:
  // The last token is `end`, and is never passed.
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& token() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at(Token::Kind kind, std::string_view text) const {
    return token().kind == kind && token().text == text;
  }
  bool at_symbol(std::string_view text) const { return at(Token::Kind::symbol, text); }
  bool at_name(std::string_view text) const { return at(Token::Kind::name, text); }
  bool accept_symbol(std::string_view text) { return accept(Token::Kind::symbol, text); }
  bool accept_name(std::string_view text) { return accept(Token::Kind::name, text); }
  void expect_symbol(std::string_view text) { expect(Token::Kind::symbol, text); }
  void expect_name(std::string_view text) { expect(Token::Kind::name, text); }
  // Whether another list item follows. Items are separated by commas, a trailing comma is allowed,
  // and `close` ends the list. `first`: no item was read yet.
  bool next_item(std::string_view close, bool first);
  void expect_end(Token::Kind kind, std::string_view what);
  std::string take_name(std::string_view what);
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  bool accept(Token::Kind kind, std::string_view text);
  void expect(Token::Kind kind, std::string_view text);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

class ExpressionParser : protected TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  // Maximum nesting, so that no template overflows the stack.
  static constexpr int kMaxDepth = 100;
  // Maximum operators per statement: each deepens the tree, which leans to one side.
  static constexpr int kMaxOperators = 2000;

  class Level {
   public:
    explicit Level(ExpressionParser& parser) : parser_(parser) {
      if (++parser.level_ > kMaxDepth) fail_at(parser.token().at, "this is nested too deep");
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  void begin_statement() { operators_ = 0; }
  // Parses an item with parse_item(), or a tuple if a comma follows; a comma is trailing if ends()
  // holds after it.
  template <typename ParseItem, typename Ends>
  ExpressionPtr parse_tuple(const ParseItem& parse_item, const Ends& ends) {
    ExpressionPtr first = parse_item();
    if (!at_symbol(",")) return first;
    ExpressionPtr tuple = make(Expression::Kind::tuple, "", std::move(first));
    while (accept_symbol(",") && !ends()) tuple->operands.push_back(parse_item());
    return tuple;
  }

  // An expression or a tuple: "a, b".
  ExpressionPtr parse_list_expression();
  ExpressionPtr parse_expression();
  ExpressionPtr parse_or();  // without "a if b else c", which would consume a loop's condition
  // The target of a loop or set.
  ExpressionPtr parse_target(bool attributes);
  ExpressionPtr parse_call(ExpressionPtr function);
  // name(arguments) after a | or filter; the input is the operand, or null.
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr parse_filters(ExpressionPtr input);

 private:
  void count_operator();
  ExpressionPtr parse_one_target(bool attributes);
  template <typename... Operands>
  static ExpressionPtr make(Expression::Kind kind, std::string text = {}, Operands... operands) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->text = std::move(text);
    (made->operands.push_back(std::move(operands)), ...);
    return made;
  }
  static ExpressionPtr literal(Value value) {
    ExpressionPtr made = make(Expression::Kind::literal);
    made->value = std::move(value);
    return made;
  }
  using Parse = ExpressionPtr (ExpressionParser::*)();
  // Left-associative operators of one precedence.
  ExpressionPtr parse_chain(std::initializer_list<std::string_view> operators, Parse operand);
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  std::string accept_comparison();  // empty: there is none
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_term();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary() { return parse_signed(true); }
  ExpressionPtr parse_signed(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_number();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  ExpressionPtr parse_tests_and_filters(ExpressionPtr value);
  ExpressionPtr parse_test(ExpressionPtr value);
  CallArguments parse_arguments();

  int level_ = 0;
  int operators_ = 0;  // in this statement
};

}  // namespace nvllm::jinja
