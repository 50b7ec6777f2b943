// Value: the values of templates. They behave like Python's values in Jinja.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/marked_text.h"

namespace nvllm::jinja {

using tokenizer::MarkedText;

class Value;
class Interpreter;
struct Arguments;

// The result of a failed lookup: printed as nothing, false, and an error in any other use.
struct Undefined {
  std::string name;  // "variable 'tools'", for errors
};

struct None {};

// The size of a value with all nested values. Both members are bounded, so that traversals neither
// overflow the stack nor take too long (lists may contain the same list many times).
struct Extent {
  static constexpr int kMaxDepth = 200;
  static constexpr std::int64_t kMaxWeight = std::int64_t{1} << 24;

  int depth = 0;
  std::int64_t weight = 1;  // number of nested values, counted at each occurrence; eight bytes of
                            // text count as one
  bool marked = false;      // contains text from outside (tokenizer/marked_text.h)

  void add(const Value& part);
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  Extent extent = {};  // set when it becomes a Value
};

// Keeps the insertion order of keys. Keys compare as in Python: 1 == 1.0 == true. Texts are found
// in logarithmic time; other keys by linear search, so their number is limited.
class Dict {
 public:
  static constexpr std::size_t kMaxOtherKeys = 1024;

  std::size_t size() const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  const Value* find(const Value& key) const;
  const Value* get(std::string_view key) const;
  void set(Value key, Value value);
  void clear();

 private:
  friend class Value;
  static constexpr std::size_t kFew = 16;

  // The key's index in items_; items_.size() if it is not found.
  std::size_t place_of(const Value& key) const;
  std::size_t place_of_text(std::string_view key) const;
  void add_to_index(std::size_t item);

  std::vector<std::pair<Value, Value>> items_;
  // Indices of text keys, once there are more than a few. The texts are owned by items_.
  std::map<std::string_view, std::size_t> texts_;
  std::vector<std::size_t> others_;  // indices of the other keys
  Extent extent_;
};

// namespace(...), the one thing that a template can change; and `loop`, which it cannot change.
struct Namespace {
  Dict values;
  bool changeable = true;
  Extent extent = {};  // of a loop; mutable values end traversals
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  Extent extent = {};  // of the values captured by `call`
};

// Cheap to copy. Strings, lists and dicts are immutable once they are Values.
class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const MarkedText>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Namespace>, std::shared_ptr<const Callable>>;

  Value() : data_(None{}) {}
  Value(Undefined value) : data_(std::move(value)) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(std::int64_t{value}) {}
  Value(std::int64_t value) : data_(value) {}
  Value(std::size_t value) : data_(static_cast<std::int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(MarkedText value) : data_(std::make_shared<const MarkedText>(std::move(value))) {}
  Value(std::string value) : Value(MarkedText{std::move(value)}) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(List value);  // an Error if it is too deep or too heavy
  Value(Dict value);
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(Callable value) : data_(std::make_shared<const Callable>(std::move(value))) {}

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool undefined() const { return get<Undefined>() != nullptr; }
  bool none() const { return get<None>() != nullptr; }
  const std::string* string() const {
    const MarkedText* text = marked_text();
    return text == nullptr ? nullptr : &text->text;
  }
  const MarkedText* marked_text() const { return pointed<const MarkedText>(); }
  const List* list() const { return pointed<const List>(); }
  const Dict* dict() const { return pointed<const Dict>(); }
  Namespace* name_space() const { return pointed<Namespace>(); }
  const Callable* callable() const { return pointed<const Callable>(); }
  // Integers, and truth values as 0 and 1.
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;  // of any kind

  bool truth() const;
  Extent extent() const;
  std::int64_t weight() const { return extent().weight; }
  bool marked() const { return extent().marked; }
  // "string", "integer", "dict": for errors.
  const char* type_name() const;

 private:
  template <typename T>
  T* pointed() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&data_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Data data_;
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The position of a name among the named arguments, or their end.
  auto find(std::string_view name) {
    return std::ranges::find(named, name, &std::pair<std::string, Value>::first);
  }
  auto find(std::string_view name) const {
    return std::ranges::find(named, name, &std::pair<std::string, Value>::first);
  }
};

inline std::size_t Dict::size() const {
  return items_.size();
}

bool equal(const Value& a, const Value& b);
// Negative, 0, positive; an Error for types without an order.
int compare(const Value& a, const Value& b);

// The value with all of its text marked as coming from outside.
Value from_outside(const Value& value);

// As {{ value }} prints it.
std::string to_text(const Value& value);
// The same with marks: those of a string; for other values the whole text, if any text in it has
// marks.
MarkedText to_marked_text(const Value& value);
// As Python's repr() writes it inside lists and dicts.
std::string to_repr(const Value& value);

struct JsonStyle {
  int indent = -1;  // negative: one line
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  std::size_t max_bytes = SIZE_MAX;
};
// In the format of Python's json.dumps. An Error for values that JSON does not support, and for
// more than max_bytes.
std::string to_json(const Value& value, const JsonStyle& style);
// Parses JSON; `what` names it in errors.
Value from_json(std::string_view text, std::string_view what);

}  // namespace nvllm::jinja
