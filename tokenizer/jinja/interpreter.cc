#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/syntax.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

// An Error whose text already contains its position.
class PlacedError : public Error {
 public:
  using Error::Error;
};

}  // namespace

// The variables of a block; `parent` has those of the enclosing blocks.
struct Interpreter::Scope {
  static constexpr std::size_t kFew = 16;

  ScopePtr parent;
  std::vector<std::pair<std::string, Value>> values;
  std::unordered_map<std::string, std::size_t> places;  // index in `values`, once there are more
                                                        // than kFew

  Value* find(const std::string& name) {
    if (!places.empty()) {
      const auto place = places.find(name);
      return place == places.end() ? nullptr : &values[place->second].second;
    }
    for (auto& [known, value] : values) {
      if (known == name) return &value;
    }
    return nullptr;
  }
  void add(const std::string& name, Value value) {
    values.emplace_back(name, std::move(value));
    if (values.size() <= kFew) return;
    for (std::size_t i = places.size(); i < values.size(); ++i) places[values[i].first] = i;
  }
};

// Gives a block its own scope inside of `parent`, for the lifetime of the frame.
class Interpreter::Frame {
 public:
  Frame(Interpreter& interpreter, ScopePtr parent)
      : interpreter_(interpreter), before_(interpreter.scope_) {
    interpreter_.scope_ = std::make_shared<Scope>();
    interpreter_.scope_->parent = std::move(parent);
  }
  explicit Frame(Interpreter& interpreter) : Frame(interpreter, interpreter.scope_) {}
  ~Frame() { interpreter_.scope_ = before_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  Interpreter& interpreter_;
  ScopePtr before_;
};

Interpreter::Interpreter(const Dict& context, const Limits& limits)
    : limits_(limits), scope_(std::make_shared<Scope>()) {
  const Dict globals = global_functions();
  for (const auto& [name, value] : globals.items()) set(*name.string(), value);
  for (const auto& [name, value] : context.items()) {
    if (name.string() != nullptr) set(*name.string(), value);
  }
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_scopes_) {
    scope->places.clear();
    scope->values.clear();
  }
  for (const auto& space : namespaces_) space->values.clear();
  for (const auto& cell : cells_) *cell = Value();
}

MarkedText Interpreter::render(const Block& block) {
  MarkedText out;
  out_ = &out;
  try {
    run(block);
  } catch (const PlacedError& error) {
    throw Error(error.what());
  }
  return out;
}

void Interpreter::fail_work() {
  fail("this takes too much time or memory");
}

void Interpreter::look_at_clock() {
  constexpr std::int64_t kLookEvery = 1 << 16;  // well below a millisecond
  next_look_ = work_ + kLookEvery;
  if (now_ns() - start_ns_ > limits_.time.count()) {
    fail("this takes more than ",
         format_duration(static_cast<double>(limits_.time.count()) * 1e-9));
  }
}

void Interpreter::print(const MarkedText& text) {
  reserve(text.text.size());
  if (text.text.size() > limits_.output - std::min(out_->text.size(), limits_.output)) {
    fail("the text is longer than ", limits_.output, " bytes");
  }
  out_->append(text);
}

template <typename Print>
MarkedText Interpreter::captured(const Print& print) {
  MarkedText out;
  MarkedText* const before = std::exchange(out_, &out);
  print();
  out_ = before;
  return out;
}

void Interpreter::enter_call() {
  if (++depth_ > limits_.depth) fail("calls are nested more than ", limits_.depth, " deep");
}

Value Interpreter::make_namespace(Dict values) {
  charge(kStepWork * 8);
  auto made = std::make_shared<Namespace>();
  made->values = std::move(values);
  namespaces_.push_back(made);
  return made;
}

// --- statements

Interpreter::Flow Interpreter::run(const Block& block) {
  for (const auto& statement : block) {
    try {
      const Flow flow = run(*statement);
      if (flow != Flow::on) return flow;
    } catch (const TemplateRaised&) {
      throw;
    } catch (const PlacedError&) {
      throw;
    } catch (const Error& error) {
      throw PlacedError(placed(statement->at, error.what()));
    }
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run(const Statement& statement) {
  charge(kStepWork);
  switch (statement.kind) {
    case Statement::Kind::text: print(MarkedText{statement.text}); break;
    case Statement::Kind::print: {
      const Value value = evaluate(*statement.expression);
      charge(8 * value.weight());
      print(to_marked_text(value));
      break;
    }
    case Statement::Kind::conditional: return run_if(statement);
    case Statement::Kind::loop: return run_loop(statement);
    case Statement::Kind::set: assign(*statement.target, evaluate(*statement.expression)); break;
    case Statement::Kind::set_block: run_set_block(statement); break;
    case Statement::Kind::macro: set(statement.text, make_macro(statement, statement.text)); break;
    case Statement::Kind::call: run_call(statement); break;
    case Statement::Kind::filter:
      print(to_marked_text(
          apply_filters(*statement.expression, Value(captured_block(statement.body)))));
      break;
    case Statement::Kind::with: run_with(statement); break;
    case Statement::Kind::body: return run(statement.body);
    case Statement::Kind::leave: return Flow::leave;
    case Statement::Kind::next: return Flow::next;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (const auto& [condition, block] : statement.branches) {
    if (condition == nullptr || evaluate(*condition).truth()) return run(block);
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement) {
  return run_loop_over(statement, items_of(*this, evaluate(*statement.expression)), 0);
}

MarkedText Interpreter::run_recursive_loop(const Statement& statement, const ScopePtr& scope,
                                           const Value& values, int depth) {
  enter_call();
  MarkedText out = captured([&] {
    const Frame frame(*this, scope);
    run_loop_over(statement, items_of(*this, values), depth);
  });
  --depth_;
  return out;
}

Interpreter::Flow Interpreter::run_loop_over(const Statement& statement,
                                             const std::vector<Value>& all, int depth) {
  std::vector<Value> kept;
  if (statement.condition != nullptr) {
    for (const Value& item : all) {
      const Frame frame(*this);
      charge(kStepWork);
      assign(*statement.target, item);
      if (evaluate(*statement.condition).truth()) kept.push_back(item);
    }
  }
  const std::vector<Value>& items = statement.condition != nullptr ? kept : all;
  if (items.empty()) {
    const Frame frame(*this);
    return run(statement.otherwise);
  }
  const auto last_changed = std::make_shared<Value>(Undefined{"nothing"});
  cells_.push_back(last_changed);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Frame frame(*this);
    charge(kLoopWork);
    assign(*statement.target, items[i]);
    set("loop", loop_value(statement, items, i, depth, last_changed));
    if (run(statement.body) == Flow::leave) break;
  }
  return Flow::on;
}

// The value of `loop` in the body: a function for recursive loops, with attributes in any.
Value Interpreter::loop_value(const Statement& statement, const std::vector<Value>& items,
                              std::size_t index, int depth,
                              const std::shared_ptr<Value>& last_changed) {
  const auto count = static_cast<std::int64_t>(items.size());
  const auto at = static_cast<std::int64_t>(index);
  auto loop = std::make_shared<Namespace>();
  loop->changeable = false;
  Dict& values = loop->values;
  values.set("index0", at);
  values.set("index", at + 1);
  values.set("revindex0", count - at - 1);
  values.set("revindex", count - at);
  values.set("first", at == 0);
  values.set("last", at + 1 == count);
  values.set("length", count);
  values.set("depth0", depth);
  values.set("depth", depth + 1);
  values.set("previtem", at > 0 ? items[index - 1] : Value(Undefined{"loop.previtem"}));
  values.set("nextitem", at + 1 < count ? items[index + 1] : Value(Undefined{"loop.nextitem"}));
  values.set("cycle",
             Callable{.name = "cycle", .call = [index](Interpreter&, Arguments& arguments) {
                        if (arguments.positional.empty()) fail("cycle: nothing to choose from");
                        return arguments.positional[index % arguments.positional.size()];
                      }});
  values.set("changed", Callable{.name = "changed",
                                 .call = [last_changed](Interpreter& self, Arguments& arguments) {
                                   Value now(List{.items = arguments.positional, .tuple = true});
                                   charge_comparison(self, now, *last_changed);
                                   const bool changed = !equal(now, *last_changed);
                                   *last_changed = std::move(now);
                                   return Value(changed);
                                 }});
  if (statement.recursive) {
    const ScopePtr outside = scope_->parent;
    captured_scopes_.push_back(outside);
    values.set("__call__", Callable{.name = "loop",
                                    .call = [&statement, outside, depth](Interpreter& self,
                                                                         Arguments& arguments) {
                                      if (arguments.positional.size() != 1)
                                        fail("loop() takes one argument");
                                      return Value(self.run_recursive_loop(
                                          statement, outside, arguments.positional[0], depth + 1));
                                    }});
  }
  loop->extent.add(*values.get("previtem"));
  loop->extent.add(*values.get("nextitem"));
  return loop;
}

void Interpreter::run_set_block(const Statement& statement) {
  Value text(captured_block(statement.body));
  assign(*statement.target,
         statement.expression == nullptr ? text : apply_filters(*statement.expression, text));
}

void Interpreter::run_with(const Statement& statement) {
  // The values are evaluated in the outer scope.
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.assignments)
    values.push_back(evaluate(*expression));
  const Frame frame(*this);
  for (std::size_t i = 0; i < values.size(); ++i)
    assign(*statement.assignments[i].first, std::move(values[i]));
  run(statement.body);
}

void Interpreter::run_call(const Statement& statement) {
  const Expression& expression = *statement.expression;
  const Value function = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  arguments.named.emplace_back("caller", make_macro(statement, "caller"));
  print(to_marked_text(call(function, arguments)));
}

Value Interpreter::make_macro(const Statement& statement, const std::string& name) {
  // The scope stays alive with all of its variables.
  charge_values(scope_->values.size() + 1);
  captured_scopes_.push_back(scope_);
  return Callable{
      .name = "macro " + name,
      .call = [&statement, name, scope = scope_](Interpreter& self, Arguments& arguments) {
        return self.call_macro(statement, name, scope, arguments);
      }};
}

Value Interpreter::call_macro(const Statement& statement, const std::string& name,
                              const ScopePtr& scope, Arguments& arguments) {
  const Frame frame(*this, scope);
  bind_parameters(statement, name, arguments);
  return captured([&] { run(statement.body); });
}

void Interpreter::bind_parameters(const Statement& statement, const std::string& name,
                                  Arguments& arguments) {
  const auto& parameters = statement.parameters;
  List more{.items = {}, .tuple = true};
  if (arguments.positional.size() > parameters.size()) {
    more.items.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(parameters.size()),
                      arguments.positional.end());
  }
  set("varargs", std::move(more));
  Dict others;
  for (const auto& [given, value] : arguments.named) {
    if (given == "caller") {
      set(given, value);
    } else if (std::ranges::find(parameters, given, &MacroParameter::name) == parameters.end()) {
      others.set(given, value);
    }
  }
  set("kwargs", std::move(others));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const MacroParameter& parameter = parameters[i];
    const auto named = arguments.find(parameter.name);
    if (i < arguments.positional.size()) {
      if (named != arguments.named.end()) fail(name, ": '", parameter.name, "' is given twice");
      set(parameter.name, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      set(parameter.name, named->second);
    } else if (parameter.fallback != nullptr) {
      set(parameter.name, evaluate(*parameter.fallback));
    } else {
      set(parameter.name, Undefined{str("parameter '", parameter.name, "'")});
    }
  }
}

MarkedText Interpreter::captured_block(const Block& block) {
  const Frame frame(*this);
  return captured([&] { run(block); });
}

// --- variables

Value Interpreter::look_up(const std::string& name) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    charge(1);
    if (const Value* value = scope->find(name)) return *value;
  }
  return Undefined{str("variable '", name, "'")};
}

void Interpreter::set(const std::string& name, Value value) {
  if (Value* known = scope_->find(name)) {
    *known = std::move(value);
  } else {
    scope_->add(name, std::move(value));
  }
}

void Interpreter::assign(const Expression& target, Value value) {
  if (target.kind == Expression::Kind::name) return set(target.text, std::move(value));
  if (target.kind == Expression::Kind::attribute) {
    Namespace* space = look_up(target.operands[0]->text).name_space();
    if (space == nullptr || !space->changeable) {
      fail("'", target.operands[0]->text, "' is no namespace, so it cannot be changed");
    }
    return space->values.set(target.text, std::move(value));
  }
  const std::vector<Value> items = items_of(*this, value);
  if (items.size() != target.operands.size()) {
    fail("expected ", target.operands.size(), " values, found ", items.size());
  }
  for (std::size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i]);
}

Template Template::parse(std::string_view source) {
  if (source.size() > kMaxBytes) {
    fail("the template has ", source.size(), " bytes; at most ", kMaxBytes, " are read");
  }
  std::string valid;
  tokenizer::append_valid_utf8(valid, source);
  return Template(jinja::parse(valid));
}

std::string Template::render(const Dict& context, const Limits& limits) const {
  return render_marked(context, limits).text;
}

MarkedText Template::render_marked(const Dict& context, const Limits& limits) const {
  return Interpreter(context, limits).render(*block_);
}

}  // namespace nvllm::jinja
