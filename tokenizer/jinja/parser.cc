#include "base/error.h"
#include "tokenizer/jinja/expression_parser.h"
#include "tokenizer/jinja/syntax.h"

namespace nvllm::jinja {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

class Parser : private ExpressionParser {
  static constexpr std::size_t kMaxParameters = 100;  // of a macro: each is found by a linear
                                                      // search

 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block block = parse_block({});
    if (token().kind != Token::Kind::end) fail_at(token().at, "this ends nothing");
    return block;
  }

 private:
  static StatementPtr make(Kind kind, Position at) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->at = at;
    return made;
  }

  // Parses up to {% one of `ends`, whose name is then the next token; or the end of the template.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    const Position begin = token().at;
    Block block;
    while (token().kind != Token::Kind::end) {
      begin_statement();
      if (token().kind == Token::Kind::text) {
        StatementPtr text = make(Kind::text, token().at);
        text->text = take().text;
        block.push_back(std::move(text));
      } else if (token().kind == Token::Kind::print_begin) {
        StatementPtr print = make(Kind::print, take().at);
        print->expression = parse_list_expression();
        expect_end(Token::Kind::print_end, "'}}'");
        block.push_back(std::move(print));
      } else {
        const Position at = take().at;
        for (const std::string_view end : ends) {
          if (at_name(end)) return block;
        }
        block.push_back(parse_statement(at));
      }
    }
    if (ends.size() > 0) fail_at(begin, str("this block has no {% ", *(ends.end() - 1), " %}"));
    return block;
  }

  void end_block() { expect_end(Token::Kind::block_end, "'%}'"); }
  // The body of a block, including its end tag.
  Block parse_body(std::string_view end) {
    end_block();
    Block body = parse_block({end});
    take();
    if (token().kind == Token::Kind::name) take();  // {% endmacro name %}
    end_block();
    return body;
  }

  StatementPtr parse_statement(Position at) {
    const Position name_at = token().at;
    const std::string name = take_name("a statement");
    if (name == "if") return parse_if(at);
    if (name == "for") return parse_for(at);
    if (name == "set") return parse_set(at);
    if (name == "macro") return parse_macro(at);
    if (name == "call") return parse_call_block(at);
    if (name == "filter") return parse_filter_block(at);
    if (name == "with") return parse_with(at);
    if (name == "generation") {
      StatementPtr made = make(Kind::body, at);
      made->body = parse_body("endgeneration");
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(name_at, str("'", name, "' stands outside of a loop"));
      StatementPtr made = make(name == "break" ? Kind::leave : Kind::next, at);
      end_block();
      return made;
    }
    for (const char* later :
         {"include", "import", "from", "extends", "block", "do", "autoescape", "trans"}) {
      if (name == later) fail_at(name_at, str("'", name, "' is not supported in chat templates"));
    }
    fail_at(name_at, str("'", name, "' is no statement"));
  }

  StatementPtr parse_if(Position at) {
    StatementPtr made = make(Kind::conditional, at);
    while (true) {
      ExpressionPtr condition = parse_list_expression();
      end_block();
      made->branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
      if (accept_name("elif")) continue;
      if (accept_name("else")) {
        end_block();
        made->branches.emplace_back(nullptr, parse_block({"endif"}));
      }
      expect_name("endif");
      end_block();
      return made;
    }
  }

  StatementPtr parse_for(Position at) {
    StatementPtr made = make(Kind::loop, at);
    made->target = parse_target(false);
    expect_name("in");
    made->expression = parse_tuple([this] { return parse_or(); }, [] { return false; });
    if (accept_name("if")) made->condition = parse_expression();
    made->recursive = accept_name("recursive");
    end_block();
    ++loops_;
    made->body = parse_block({"else", "endfor"});
    --loops_;
    if (accept_name("else")) {
      end_block();
      made->otherwise = parse_block({"endfor"});
    }
    expect_name("endfor");
    end_block();
    return made;
  }

  StatementPtr parse_set(Position at) {
    StatementPtr made = make(Kind::set, at);
    made->target = parse_target(true);
    if (accept_symbol("=")) {
      made->expression = parse_list_expression();
      end_block();
      return made;
    }
    made->kind = Kind::set_block;
    if (accept_symbol("|")) made->expression = parse_filters(nullptr);
    made->body = parse_body("endset");
    return made;
  }

  std::vector<MacroParameter> parse_parameters() {
    std::vector<MacroParameter> parameters;
    expect_symbol("(");
    while (!accept_symbol(")")) {
      if (!parameters.empty()) expect_symbol(",");
      MacroParameter parameter;
      parameter.name = take_name("a parameter's name");
      if (accept_symbol("=")) {
        parameter.fallback = parse_expression();
      } else if (!parameters.empty() && parameters.back().fallback != nullptr) {
        fail_at(token().at, "a parameter without a default stands behind one with a default");
      }
      if (parameters.size() == kMaxParameters) fail_at(token().at, "too many parameters");
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  // The body of a function is outside of the enclosing loops.
  Block parse_function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(end);
    loops_ = loops;
    return body;
  }

  StatementPtr parse_macro(Position at) {
    StatementPtr made = make(Kind::macro, at);
    made->text = take_name("the macro's name");
    made->parameters = parse_parameters();
    made->body = parse_function_body("endmacro");
    return made;
  }

  StatementPtr parse_call_block(Position at) {
    StatementPtr made = make(Kind::call, at);
    if (at_symbol("(")) made->parameters = parse_parameters();
    const Position call_at = token().at;
    made->expression = parse_expression();
    if (made->expression->kind != Expression::Kind::call)
      fail_at(call_at, "expected a call of a macro");
    made->body = parse_function_body("endcall");
    return made;
  }

  StatementPtr parse_filter_block(Position at) {
    StatementPtr made = make(Kind::filter, at);
    made->expression = parse_filters(nullptr);
    made->body = parse_body("endfilter");
    return made;
  }

  StatementPtr parse_with(Position at) {
    StatementPtr made = make(Kind::with, at);
    while (token().kind != Token::Kind::block_end) {
      if (!made->assignments.empty()) expect_symbol(",");
      ExpressionPtr target = parse_target(false);
      expect_symbol("=");
      made->assignments.emplace_back(std::move(target), parse_expression());
    }
    made->body = parse_body("endwith");
    return made;
  }

  int loops_ = 0;  // nesting of loops at the current statement
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(tokenize(source)).run();
}

}  // namespace nvllm::jinja
