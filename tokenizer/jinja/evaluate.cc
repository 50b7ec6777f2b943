// The interpreter: evaluation of expressions.
#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
Value Interpreter::evaluate(const Expression& expression) {
  charge(kStepWork);
  using Kind = Expression::Kind;
  switch (expression.kind) {
    case Kind::literal: return expression.value;
    case Kind::name: return look_up(expression.text);
    case Kind::list: return evaluate_items(expression, false);
    case Kind::tuple: return evaluate_items(expression, true);
    case Kind::dict: {
      Dict dict;
      for (std::size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
        Value key = evaluate(*expression.operands[i]);
        Value value = evaluate(*expression.operands[i + 1]);
        charge_values(1);
        charge(key.weight());
        dict.set(std::move(key), std::move(value));
      }
      return dict;
    }
    case Kind::attribute:
      return attribute(*this, evaluate(*expression.operands[0]), expression.text);
    case Kind::subscript: {
      const Value value = evaluate(*expression.operands[0]);
      return subscript(*this, value, evaluate(*expression.operands[1]));
    }
    case Kind::slice: return evaluate_slice(expression);
    case Kind::call: return evaluate_call(expression);
    case Kind::filter: {
      const Value input = evaluate(*expression.operands[0]);
      Arguments arguments = evaluate_arguments(expression.arguments);
      return filter(expression.text, input, arguments);
    }
    case Kind::test: return evaluate_test(expression);
    case Kind::unary: return evaluate_unary(expression);
    case Kind::binary: return evaluate_binary(expression);
    case Kind::comparison: return evaluate_comparison(expression);
    case Kind::conditional: {
      if (evaluate(*expression.operands[1]).truth()) return evaluate(*expression.operands[0]);
      if (expression.operands[2] == nullptr)
        return Undefined{"the value of an 'if' without 'else'"};
      return evaluate(*expression.operands[2]);
    }
  }
  return {};
}

List Interpreter::evaluate_items(const Expression& expression, bool tuple) {
  List list{.items = {}, .tuple = tuple};
  for (const ExpressionPtr& operand : expression.operands) list.items.push_back(evaluate(*operand));
  return list;
}

Value Interpreter::evaluate_unary(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  if (expression.text == "not") return !value.truth();
  const Value opposite = negated(value);
  return expression.text == "-" ? opposite : value;
}

Value Interpreter::evaluate_binary(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  const std::string& operation = expression.text;
  if (operation == "and") return left.truth() ? evaluate(*expression.operands[1]) : std::move(left);
  if (operation == "or") return left.truth() ? std::move(left) : evaluate(*expression.operands[1]);
  const Value right = evaluate(*expression.operands[1]);
  if (operation == "~") {
    charge(8 * (left.weight() + right.weight()));
    MarkedText text = to_marked_text(left);
    text.append(*as_text(right).marked_text());
    return text;
  }
  return arithmetic(*this, operation, left, right);
}

bool Interpreter::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (std::size_t i = 0; i < expression.texts.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1]);
    charge_comparison(*this, left, right);
    const std::string& operation = expression.texts[i];
    bool holds = false;
    if (operation == "in" || operation == "not in") {
      holds = contains(*this, right, left) == (operation == "in");
    } else if (operation == "==" || operation == "!=") {
      holds = equal(left, right) == (operation == "==");
    } else {
      if (left.undefined()) fail_undefined(left);
      if (right.undefined()) fail_undefined(right);
      const int order = compare(left, right);
      holds = operation == "<"    ? order < 0
              : operation == "<=" ? order <= 0
              : operation == ">"  ? order > 0
                                  : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const auto part = [&](std::size_t i) {
    return expression.operands[i] == nullptr ? Value() : evaluate(*expression.operands[i]);
  };
  const Value value = part(0);
  const Value from = part(1);
  const Value to = part(2);
  return slice(*this, value, from, to, part(3));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments given;
  for (const ExpressionPtr& one : arguments.positional) given.positional.push_back(evaluate(*one));
  if (arguments.more_positional != nullptr) {
    for (Value& item : items_of(*this, evaluate(*arguments.more_positional)))
      given.positional.push_back(std::move(item));
  }
  for (const auto& [name, one] : arguments.named) given.named.emplace_back(name, evaluate(*one));
  if (arguments.more_named != nullptr) {
    const Value more = evaluate(*arguments.more_named);
    if (more.dict() == nullptr) fail("'**' takes a dict, not ", more.type_name());
    charge_values(more.dict()->size());
    for (const auto& [name, value] : more.dict()->items()) {
      if (name.string() == nullptr) fail("'**' takes a dict whose keys are strings");
      given.named.emplace_back(*name.string(), value);
    }
  }
  return given;
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Value function = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  return call(function, arguments);
}

Value Interpreter::call(const Value& function, Arguments& arguments) {
  const Callable* callable = function.callable();
  Value loop;  // keeps a recursive loop's function alive
  if (const Namespace* space = function.name_space()) {
    if (const Value* found = space->values.get("__call__")) {
      loop = *found;
      callable = loop.callable();
    }
  }
  if (callable == nullptr) {
    if (function.undefined()) fail_undefined(function);
    fail("a ", function.type_name(), " cannot be called");
  }
  enter_call();
  Value result = callable->call(*this, arguments);
  --depth_;
  return result;
}

Value Interpreter::apply_filters(const Expression& expression, const Value& text) {
  const Expression* inner = expression.operands[0].get();
  const Value input = inner == nullptr ? text : apply_filters(*inner, text);
  Arguments arguments = evaluate_arguments(expression.arguments);
  return filter(expression.text, input, arguments);
}

Value Interpreter::filter(const std::string& name, const Value& input, Arguments& arguments) {
  charge(kStepWork);
  return run_filter(*this, name, input, arguments);
}

bool Interpreter::evaluate_test(const Expression& expression) {
  const std::string& name = expression.text;
  const Value value = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  return test(name, value, arguments);
}

bool Interpreter::test(const std::string& name, const Value& value, Arguments& arguments) {
  charge(kStepWork);
  if (name == "filter" || name == "test") {
    charge(8 * value.weight());
    return name == "filter" ? has_filter(to_text(value)) : has_test(to_text(value));
  }
  return run_test(*this, name, value, arguments);
}

}  // namespace nvllm::jinja
