// The tokens and the syntax tree of a template. lexer.cc creates the tokens, parser.cc the tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

struct Position {
  int line = 1;
  int column = 1;
};

// A token of a template: literal text, or a token inside of {{ }} or {% %}.
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

// Splits a template (valid UTF-8) into tokens, with trim_blocks and lstrip_blocks, like Hugging
// Face's rendering of chat templates.
std::vector<Token> tokenize(std::string_view source);

// "line 3, column 14: what", where long names and values in `what` are truncated.
std::string placed(Position at, std::string_view what);
// Throws an Error with this text.
[[noreturn]] void fail_at(Position at, const std::string& what);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *list
  ExpressionPtr more_named;       // **dict
};

struct Expression {
  enum class Kind : unsigned char {
    literal,      // value
    name,         // text
    list,         // operands
    tuple,        // operands
    dict,         // operands: key, value, key, value, ...
    attribute,    // operands[0].text
    subscript,    // operands[0][operands[1]]
    slice,        // operands[0][operands[1]:operands[2]:operands[3]]; absent ones are null
    call,         // operands[0](arguments)
    filter,       // operands[0] | text(arguments); a filter block's input is null
    test,         // operands[0] is text(arguments)
    unary,        // text: "-", "+", "not"
    binary,       // text: "+", "and", ...
    comparison,   // operands[0] texts[0] operands[1] texts[1] operands[2] ...
    conditional,  // operands[0] if operands[1] else operands[2]; the last may be null
  };
  Kind kind;
  Value value;
  std::string text;
  std::vector<std::string> texts;
  std::vector<ExpressionPtr> operands;
  CallArguments arguments;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct MacroParameter {
  std::string name;
  ExpressionPtr fallback;  // null: none
};

struct Statement {
  enum class Kind : unsigned char {
    text,         // text
    print,        // expression
    conditional,  // branches: condition (null: else) and block
    loop,         // target in expression if condition: body; else: otherwise
    set,          // target = expression
    set_block,    // target = filters (expression, may be null) of the printed body
    macro,        // text(parameters): body
    call,         // expression is a call; caller() returns the body
    filter,       // expression's innermost input is the printed body
    with,         // assignments; body
    body,         // only body
    leave,        // break
    next,         // continue
  };
  Kind kind;
  Position at;
  std::string text;
  ExpressionPtr target;  // a name, an attribute of a namespace, or a tuple of names
  ExpressionPtr expression;
  ExpressionPtr condition;
  bool recursive = false;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  std::vector<MacroParameter> parameters;
  Block body;
  Block otherwise;
};

// Parses a template (valid UTF-8). Throws an Error with the position and the reason.
Block parse(std::string_view source);

}  // namespace nvllm::jinja
