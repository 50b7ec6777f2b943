// The interpreter executes the syntax tree of a template.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tokenizer/jinja/syntax.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// Limits of a rendering, so that every template terminates. Work is charged before it is done: one
// unit per byte that an operation reads or creates, and for the memory of values besides their
// text. So the limit on work also limits memory, in bytes.
struct Limits {
  std::int64_t work = std::int64_t{1} << 28;  // some seconds
  Nanoseconds time = std::chrono::seconds(10);
  std::size_t output = std::size_t{64} << 20;  // bytes
  int depth = 60;                              // of nested calls
};

// Memory of a list item, including a short text.
inline constexpr std::int64_t kValueBytes = 160;
// Memory of a range of marks.
inline constexpr std::int64_t kMarkBytes = 16;

// Renders once. Used by one thread.
class Interpreter {
 public:
  Interpreter(const Dict& context, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  MarkedText render(const Block& block);

  // Charges work; for filters, tests and methods.
  void charge(std::int64_t work) {
    if (work < 0 || work > limits_.work - work_) fail_work();
    work_ += work;
    if (work_ >= next_look_) look_at_clock();
  }
  void charge_values(std::size_t count) {
    constexpr std::size_t kTooMany = std::size_t{1} << 50;
    charge(static_cast<std::int64_t>(std::min(count, kTooMany)) * kValueBytes);
  }
  std::int64_t work_left() const { return limits_.work - work_; }
  // Call before creating an object of this size.
  void reserve(std::size_t bytes) { charge(static_cast<std::int64_t>(bytes)); }
  Value call(const Value& function, Arguments& arguments);
  Value filter(const std::string& name, const Value& input, Arguments& arguments);
  bool test(const std::string& name, const Value& value, Arguments& arguments);
  Value make_namespace(Dict values);

 private:
  static constexpr std::int64_t kStepWork = 32;
  static constexpr std::int64_t kLoopWork = 512;  // of an iteration: a scope, and `loop`

  struct Scope;
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow : unsigned char { on, leave, next };
  class Frame;

  Flow run(const Block& block);
  Flow run(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_loop(const Statement& statement);
  MarkedText run_recursive_loop(const Statement& statement, const ScopePtr& scope,
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
  // The output of print(), like that of a block in a scope of its own.
  template <typename Print>
  MarkedText captured(const Print& print);
  MarkedText captured_block(const Block& block);
  void enter_call();  // an Error if calls are nested too deeply
  void print(const MarkedText& text);
  [[noreturn]] static void fail_work();
  void look_at_clock();

  Value evaluate(const Expression& expression);
  Value evaluate_unary(const Expression& expression);
  Value evaluate_binary(const Expression& expression);
  bool evaluate_comparison(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  // A block's nested filters, the innermost without an operand.
  Value apply_filters(const Expression& expression, const Value& text);
  bool evaluate_test(const Expression& expression);
  Arguments evaluate_arguments(const CallArguments& arguments);
  List evaluate_items(const Expression& expression, bool tuple);

  Value look_up(const std::string& name);
  void assign(const Expression& target, Value value);
  void set(const std::string& name, Value value);

  const Limits limits_;
  std::int64_t work_ = 0, next_look_ = 0;
  const std::int64_t start_ns_ = now_ns();
  int depth_ = 0;
  MarkedText* out_ = nullptr;
  ScopePtr scope_;
  // Values may form cycles with these, so they are cleared at the end.
  std::vector<ScopePtr> captured_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Value>> cells_;
};

}  // namespace nvllm::jinja
