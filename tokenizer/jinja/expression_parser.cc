#include "tokenizer/jinja/expression_parser.h"

#include <charconv>

#include "base/error.h"

namespace nvllm::jinja {
namespace {

using Kind = Expression::Kind;

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

void ExpressionParser::count_operator() {
  if (++operators_ > kMaxOperators) fail_at(token().at, "this statement is too long");
}

ExpressionPtr ExpressionParser::make(Kind kind, Position at) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->at = at;
  return made;
}

ExpressionPtr ExpressionParser::binary(std::string operation, ExpressionPtr left,
                                       ExpressionPtr right) const {
  ExpressionPtr made = make(Kind::binary, left->at);
  made->text = std::move(operation);
  made->operands.push_back(std::move(left));
  made->operands.push_back(std::move(right));
  return made;
}

ExpressionPtr ExpressionParser::parse_list_expression() {
  const Position at = token().at;
  ExpressionPtr first = parse_expression();
  if (!at_symbol(",")) return first;
  ExpressionPtr tuple = make(Kind::tuple, at);
  tuple->operands.push_back(std::move(first));
  while (accept_symbol(",")) {
    if (token().kind == Token::Kind::block_end || token().kind == Token::Kind::print_end ||
        at_symbol(")"))
      break;
    tuple->operands.push_back(parse_expression());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (at_name("if")) {
    count_operator();
    const Position at = take().at;
    ExpressionPtr made = make(Kind::conditional, at);
    made->operands.push_back(std::move(value));
    made->operands.push_back(parse_or());
    made->operands.push_back(accept_name("else") ? parse_expression() : nullptr);
    value = std::move(made);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_chain(std::initializer_list<std::string_view> operators,
                                            Parse operand) {
  ExpressionPtr value = (this->*operand)();
  while (true) {
    bool found = false;
    for (const std::string_view name : operators) {
      if (!at_symbol(name) && !(name == "or" || name == "and" ? at_name(name) : false)) continue;
      take();
      count_operator();
      value = binary(std::string(name), std::move(value), (this->*operand)());
      found = true;
      break;
    }
    if (!found) return value;
  }
}

ExpressionPtr ExpressionParser::parse_or() {
  return parse_chain({"or"}, &ExpressionParser::parse_and);
}
ExpressionPtr ExpressionParser::parse_and() {
  return parse_chain({"and"}, &ExpressionParser::parse_not);
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_comparison();
  const Level level(*this);
  ExpressionPtr made = make(Kind::unary, take().at);
  made->text = "not";
  made->operands.push_back(parse_not());
  return made;
}

std::string ExpressionParser::accept_comparison() {
  for (const std::string_view operation : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (accept_symbol(operation)) return std::string(operation);
  }
  if (accept_name("in")) return "in";
  if (at_name("not") && following().kind == Token::Kind::name && following().text == "in") {
    take();
    take();
    return "not in";
  }
  return {};
}

ExpressionPtr ExpressionParser::parse_comparison() {
  ExpressionPtr first = parse_sum();
  std::string operation = accept_comparison();
  if (operation.empty()) return first;
  ExpressionPtr made = make(Kind::comparison, first->at);
  made->operands.push_back(std::move(first));
  for (; !operation.empty(); operation = accept_comparison()) {
    made->texts.push_back(operation);
    made->operands.push_back(parse_sum());
  }
  return made;
}

ExpressionPtr ExpressionParser::parse_sum() {
  return parse_chain({"+", "-"}, &ExpressionParser::parse_concatenation);
}
ExpressionPtr ExpressionParser::parse_concatenation() {
  return parse_chain({"~"}, &ExpressionParser::parse_term);
}
ExpressionPtr ExpressionParser::parse_term() {
  return parse_chain({"*", "/", "//", "%"}, &ExpressionParser::parse_power);
}
ExpressionPtr ExpressionParser::parse_power() {
  return parse_chain({"**"}, &ExpressionParser::parse_unary);
}

ExpressionPtr ExpressionParser::parse_signed(bool with_filters) {
  const Level level(*this);
  ExpressionPtr value;
  if (at_symbol("-") || at_symbol("+")) {
    const Token sign = take();
    value = make(Kind::unary, sign.at);
    value->text = sign.text;
    value->operands.push_back(parse_signed(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_tests_and_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Position at = token().at;
  ExpressionPtr made = make(Kind::literal, at);
  switch (token().kind) {
    case Token::Kind::name: {
      const std::string name = take().text;
      if (name == "true" || name == "True") {
        made->value = true;
      } else if (name == "false" || name == "False") {
        made->value = false;
      } else if (name != "none" && name != "None") {
        made->kind = Kind::name;
        made->text = name;
      }
      return made;
    }
    case Token::Kind::string: {
      std::string text = take().text;
      while (token().kind == Token::Kind::string) text += take().text;
      made->value = std::move(text);
      return made;
    }
    case Token::Kind::integer:
    case Token::Kind::real: return parse_number();
    default: break;
  }
  if (at_symbol("(")) return parse_parenthesis();
  if (at_symbol("[")) return parse_list();
  if (at_symbol("{")) return parse_dict();
  fail_expected("a value");
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token number = take();
  ExpressionPtr made = make(Kind::literal, number.at);
  const char* end = number.text.data() + number.text.size();
  if (number.kind == Token::Kind::integer) {
    std::int64_t value = 0;
    const auto result = std::from_chars(number.text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end)
      fail_at(number.at, str(number.text, " is too large"));
    made->value = value;
  } else {
    double value = 0;
    std::from_chars(number.text.data(), end, value);
    made->value = value;
  }
  return made;
}

ExpressionPtr ExpressionParser::parse_parenthesis() {
  const Position at = take().at;
  if (accept_symbol(")")) return make(Kind::tuple, at);
  ExpressionPtr value = parse_list_expression();
  expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr list = make(Kind::list, take().at);
  while (!accept_symbol("]")) {
    if (!list->operands.empty()) {
      expect_symbol(",");
      if (accept_symbol("]")) break;
    }
    list->operands.push_back(parse_expression());
  }
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Kind::dict, take().at);
  while (!accept_symbol("}")) {
    if (!dict->operands.empty()) {
      expect_symbol(",");
      if (accept_symbol("}")) break;
    }
    dict->operands.push_back(parse_expression());
    expect_symbol(":");
    dict->operands.push_back(parse_expression());
  }
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    count_operator();
    if (at_symbol(".")) {
      ExpressionPtr made = make(Kind::attribute, take().at);
      made->text = token().kind == Token::Kind::integer ? take().text : take_name("a name");
      made->operands.push_back(std::move(value));
      value = std::move(made);
    } else if (at_symbol("[")) {
      value = parse_subscript(std::move(value));
    } else if (at_symbol("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  ExpressionPtr made = make(Kind::subscript, take().at);
  made->operands.push_back(std::move(value));
  const auto part = [&]() -> ExpressionPtr {
    return at_symbol(":") || at_symbol("]") ? nullptr : parse_expression();
  };
  made->operands.push_back(part());
  while (at_symbol(":") && made->operands.size() < 4) {
    take();
    made->kind = Kind::slice;
    made->operands.push_back(part());
  }
  if (made->kind == Kind::subscript && made->operands[1] == nullptr) fail_expected("an index");
  if (made->kind == Kind::slice) made->operands.resize(4);
  expect_symbol("]");
  return made;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr function) {
  ExpressionPtr made = make(Kind::call, token().at);
  made->operands.push_back(std::move(function));
  made->arguments = parse_arguments();
  return made;
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  expect_symbol("(");
  for (bool first = true; !accept_symbol(")"); first = false) {
    if (!first) {
      expect_symbol(",");
      if (accept_symbol(")")) break;
    }
    if (accept_symbol("**")) {
      arguments.more_named = parse_expression();
    } else if (accept_symbol("*")) {
      arguments.more_positional = parse_expression();
    } else if (token().kind == Token::Kind::name && following().kind == Token::Kind::symbol &&
               following().text == "=") {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty())
        fail_at(token().at, "an argument without a name stands behind one with a name");
      arguments.positional.push_back(parse_expression());
    }
  }
  return arguments;
}

ExpressionPtr ExpressionParser::parse_tests_and_filters(ExpressionPtr value) {
  while (true) {
    count_operator();
    if (accept_symbol("|")) {
      value = parse_filter(std::move(value));
    } else if (accept_name("is")) {
      value = parse_test(std::move(value));
    } else if (at_symbol("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  ExpressionPtr made = make(Kind::filter, token().at);
  made->text = take_name("a filter's name");
  while (accept_symbol(".")) made->text.append(".").append(take_name("a filter's name"));
  made->operands.push_back(std::move(input));
  if (at_symbol("(")) made->arguments = parse_arguments();
  return made;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  ExpressionPtr value = parse_filter(std::move(input));
  while (accept_symbol("|")) {
    count_operator();
    value = parse_filter(std::move(value));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  const Position at = token().at;
  const bool negated = accept_name("not");
  ExpressionPtr made = make(Kind::test, token().at);
  made->text = take_name("a test's name");
  made->operands.push_back(std::move(value));
  const auto starts_value = [&] {
    switch (token().kind) {
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::real: return true;
      case Token::Kind::symbol: return token().text == "[" || token().text == "{";
      case Token::Kind::name:
        return token().text != "else" && token().text != "or" && token().text != "and" &&
               token().text != "if" && token().text != "is" && token().text != "in" &&
               token().text != "not" && token().text != "recursive";
      default: return false;
    }
  };
  if (at_symbol("(")) {
    made->arguments = parse_arguments();
  } else if (starts_value()) {
    made->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  if (!negated) return made;
  ExpressionPtr inverse = make(Kind::unary, at);
  inverse->text = "not";
  inverse->operands.push_back(std::move(made));
  return inverse;
}

ExpressionPtr ExpressionParser::parse_target(bool attributes) {
  const Level level(*this);
  ExpressionPtr first = parse_one_target(attributes);
  if (!at_symbol(",")) return first;
  ExpressionPtr tuple = make(Kind::tuple, first->at);
  tuple->operands.push_back(std::move(first));
  while (accept_symbol(",")) {
    if (at_symbol(")") || at_symbol("=") || at_name("in")) break;
    tuple->operands.push_back(parse_one_target(attributes));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::parse_one_target(bool attributes) {
  if (accept_symbol("(")) {
    ExpressionPtr inner = parse_target(attributes);
    expect_symbol(")");
    return inner;
  }
  ExpressionPtr name = make(Kind::name, token().at);
  name->text = take_name("a name");
  if (!attributes || !accept_symbol(".")) return name;
  ExpressionPtr attribute = make(Kind::attribute, name->at);
  attribute->text = take_name("a name");
  attribute->operands.push_back(std::move(name));
  return attribute;
}

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
