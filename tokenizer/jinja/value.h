// Value: what a template computes with. Behaves as Python's values do in Jinja.
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

// Nothing was found under a name: printed as nothing, false, and an error in any other use.
struct Undefined {
  std::string name;  // "variable 'tools'", for errors
};

struct None {};

// A value is made of others. Both are bounded, so that no walk over one overflows the stack or
// takes for ever (lists may hold the same list many times).
struct Extent {
  static constexpr int kMaxDepth = 200;
  static constexpr std::int64_t kMaxWeight = std::int64_t{1} << 24;

  int depth = 0;
  std::int64_t weight = 1;  // values in it, each time they appear; eight bytes of text count as one
  bool marked = false;      // text in it came from outside (tokenizer/marked_text.h)

  void add(const Value& part);
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  Extent extent = {};  // set when it becomes a Value
};

// Keeps the order in which keys were added. Keys compare as in Python: 1 == 1.0 == true. Texts are
// found in logarithmic time; other keys are compared with one by one, so there may be few of them.
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

  // Where the key is in items_; their number if it is not there.
  std::size_t place_of(const Value& key) const;
  std::size_t place_of_text(std::string_view key) const;
  void add_to_index(std::size_t item);

  std::vector<std::pair<Value, Value>> items_;
  // Once there are more than a few: where the keys are that are texts. The texts live in items_.
  std::map<std::string_view, std::size_t> texts_;
  std::vector<std::size_t> others_;  // where the other keys are
  Extent extent_;
};

// namespace(...), the one thing that a template can change; and `loop`, which it cannot change.
struct Namespace {
  Dict values;
  bool changeable = true;
  Extent extent = {};  // of a loop; what can be changed ends a walk
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  Extent extent = {};  // of the values that `call` holds
};

// Cheap to copy. Strings, lists and dicts are immutable once they are a Value.
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

// What a call was given.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The place of a name among the named ones, or their end.
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
// Negative, 0, positive; an Error for types that have no order between them.
int compare(const Value& a, const Value& b);

// The value with all text in it marked as having come from outside.
Value from_outside(const Value& value);

// As {{ value }} prints it.
std::string to_text(const Value& value);
// The same with marks: those of a string; of anything else all of the text, if any text in it has
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
// As Python's json.dumps writes it. An Error for what JSON cannot say, and for more than max_bytes.
std::string to_json(const Value& value, const JsonStyle& style);
// A JSON text; `what` names it in errors.
Value from_json(std::string_view text, std::string_view what);

}  // namespace nvllm::jinja
