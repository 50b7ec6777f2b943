// The interpreter runs the syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/syntax.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// Limits of a rendering, so that no template runs for ever.
struct Limits {
  std::int64_t work = std::int64_t{1} << 28;   // about one per byte made, 32 per step: some seconds
  std::size_t output = std::size_t{64} << 20;  // bytes
  int depth = 60;                              // of calls within each other
};

// Renders once. Used by one thread.
class Interpreter {
 public:
  Interpreter(const Dict& context, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Block& block);

  // For filters, tests and methods.
  void charge(std::int64_t work);
  // Before something of this size is made.
  void reserve(std::size_t bytes) { charge(static_cast<std::int64_t>(bytes)); }
  Value call(const Value& function, Arguments& arguments);
  Value filter(const std::string& name, const Value& input, Arguments& arguments);
  bool test(const std::string& name, const Value& value, Arguments& arguments);
  Value make_namespace(Dict values);

 private:
  static constexpr std::int64_t kStepWork = 32;

  struct Scope;
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow : unsigned char { on, leave, next };
  class Frame;

  Flow run(const Block& block);
  Flow run(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_loop(const Statement& statement);
  std::string run_recursive_loop(const Statement& statement, const ScopePtr& scope,
                                 const Value& values, int depth);
  Flow run_loop_over(const Statement& statement, const std::vector<Value>& items, int depth);
  Value loop_value(const Statement& statement, const std::vector<Value>& items, std::size_t index,
                   int depth, const std::shared_ptr<Value>& last_changed);
  void run_set_block(const Statement& statement);
  void run_with(const Statement& statement);
  void run_call(const Statement& statement);
  Value make_macro(const Statement& statement, const std::string& name);
  Value call_macro(const Statement& statement, const std::string& name, const ScopePtr& scope,
                   Arguments& arguments);
  void bind_parameters(const Statement& statement, const std::string& name, Arguments& arguments);
  // What print() prints, and what a block does in a scope of its own.
  template <typename Print>
  std::string captured(const Print& print);
  std::string captured_block(const Block& block);
  void enter_call();  // an Error if calls are nested too deep
  void print(std::string_view text);

  Value evaluate(const Expression& expression);
  Value evaluate_unary(const Expression& expression);
  Value evaluate_binary(const Expression& expression);
  bool evaluate_comparison(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  // A block's filters, one around the other, the innermost without an operand.
  Value apply_filters(const Expression& expression, const Value& text);
  bool evaluate_test(const Expression& expression);
  Arguments evaluate_arguments(const CallArguments& arguments);
  List evaluate_items(const Expression& expression, bool tuple);

  Value look_up(const std::string& name) const;
  void assign(const Expression& target, Value value);
  void set(const std::string& name, Value value);

  const Limits limits_;
  std::int64_t work_ = 0;
  int depth_ = 0;
  std::string* out_ = nullptr;
  ScopePtr scope_;
  // Values may refer to these in circles, so they are cleared at the end.
  std::vector<ScopePtr> captured_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Value>> cells_;
};

}  // namespace nvllm::jinja
