#include "tokenizer/jinja/expression_parser.h"

#include <algorithm>
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

ExpressionPtr ExpressionParser::parse_list_expression() {
  return parse_tuple([this] { return parse_expression(); },
                     [this] {
                       return token().kind == Token::Kind::block_end ||
                              token().kind == Token::Kind::print_end || at_symbol(")");
                     });
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (at_name("if")) {
    count_operator();
    take();
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = accept_name("else") ? parse_expression() : nullptr;
    value =
        make(Kind::conditional, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_chain(std::initializer_list<std::string_view> operators,
                                            Parse operand) {
  ExpressionPtr value = (this->*operand)();
  while (true) {
    const auto* const found = std::ranges::find_if(
        operators, [this](std::string_view name) { return at_symbol(name) || at_name(name); });
    if (found == operators.end()) return value;
    take();
    count_operator();
    ExpressionPtr right = (this->*operand)();
    value = make(Kind::binary, std::string(*found), std::move(value), std::move(right));
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
  take();
  return make(Kind::unary, "not", parse_not());
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
  ExpressionPtr made = make(Kind::comparison, "", std::move(first));
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
    std::string sign = take().text;
    value = make(Kind::unary, std::move(sign), parse_signed(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_tests_and_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  switch (token().kind) {
    case Token::Kind::name: {
      std::string name = take().text;
      if (name == "true" || name == "True") return literal(true);
      if (name == "false" || name == "False") return literal(false);
      if (name == "none" || name == "None") return literal(Value());
      return make(Kind::name, std::move(name));
    }
    case Token::Kind::string: {
      std::string text = take().text;
      while (token().kind == Token::Kind::string) text += take().text;
      return literal(std::move(text));
    }
    case Token::Kind::integer:
    case Token::Kind::real: return parse_number();
    default: break;
  }
  if (accept_symbol("(")) {
    if (accept_symbol(")")) return make(Kind::tuple);
    ExpressionPtr value = parse_list_expression();
    expect_symbol(")");
    return value;
  }
  if (accept_symbol("[")) {
    ExpressionPtr list = make(Kind::list);
    while (next_item("]", list->operands.empty())) list->operands.push_back(parse_expression());
    return list;
  }
  if (accept_symbol("{")) return parse_dict();
  fail_expected("a value");
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token number = take();
  const char* end = number.text.data() + number.text.size();
  if (number.kind == Token::Kind::integer) {
    std::int64_t value = 0;
    const auto result = std::from_chars(number.text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end)
      fail_at(number.at, str(number.text, " is too large"));
    return literal(value);
  }
  double value = 0;
  std::from_chars(number.text.data(), end, value);
  return literal(value);
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Kind::dict);
  while (next_item("}", dict->operands.empty())) {
    dict->operands.push_back(parse_expression());
    expect_symbol(":");
    dict->operands.push_back(parse_expression());
  }
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    count_operator();
    if (accept_symbol(".")) {
      std::string name = token().kind == Token::Kind::integer ? take().text : take_name("a name");
      value = make(Kind::attribute, std::move(name), std::move(value));
    } else if (accept_symbol("[")) {
      value = parse_subscript(std::move(value));
    } else if (at_symbol("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  ExpressionPtr made = make(Kind::subscript, "", std::move(value));
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
  ExpressionPtr made = make(Kind::call, "", std::move(function));
  made->arguments = parse_arguments();
  return made;
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  expect_symbol("(");
  for (bool first = true; next_item(")", first); first = false) {
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
  std::string name = take_name("a filter's name");
  while (accept_symbol(".")) name.append(".").append(take_name("a filter's name"));
  ExpressionPtr made = make(Kind::filter, std::move(name), std::move(input));
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
  const bool negated = accept_name("not");
  ExpressionPtr made = make(Kind::test, take_name("a test's name"), std::move(value));
  constexpr std::string_view kAfterTest[] = {"else", "or", "and", "if",
                                             "is",   "in", "not", "recursive"};
  const auto starts_value = [&] {
    switch (token().kind) {
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::real: return true;
      case Token::Kind::symbol: return token().text == "[" || token().text == "{";
      case Token::Kind::name:
        return std::ranges::find(kAfterTest, token().text) == std::end(kAfterTest);
      default: return false;
    }
  };
  if (at_symbol("(")) {
    made->arguments = parse_arguments();
  } else if (starts_value()) {
    made->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  return negated ? make(Kind::unary, "not", std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::parse_target(bool attributes) {
  const Level level(*this);
  return parse_tuple([&] { return parse_one_target(attributes); },
                     [this] { return at_symbol(")") || at_symbol("=") || at_name("in"); });
}

ExpressionPtr ExpressionParser::parse_one_target(bool attributes) {
  if (accept_symbol("(")) {
    ExpressionPtr inner = parse_target(attributes);
    expect_symbol(")");
    return inner;
  }
  ExpressionPtr name = make(Kind::name, take_name("a name"));
  if (!attributes || !accept_symbol(".")) return name;
  return make(Kind::attribute, take_name("a name"), std::move(name));
}

bool TokenReader::next_item(std::string_view close, bool first) {
  if (accept_symbol(close)) return false;
  if (first) return true;
  expect_symbol(",");
  return !accept_symbol(close);
}

bool TokenReader::accept(Token::Kind kind, std::string_view text) {
  if (!at(kind, text)) return false;
  take();
  return true;
}

void TokenReader::expect(Token::Kind kind, std::string_view text) {
  if (!accept(kind, text)) fail_expected(str("'", text, "'"));
}

void TokenReader::expect_end(Token::Kind kind, std::string_view what) {
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
