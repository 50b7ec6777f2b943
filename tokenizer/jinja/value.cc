#include "tokenizer/jinja/value.h"

#include <algorithm>

#include "base/error.h"

namespace nvllm::jinja {

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : items_) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::get(std::string_view key) const {
  for (const auto& [name, value] : items_) {
    const std::string* text = name.string();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [name, old] : items_) {
    if (equal(name, key)) {
      old = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::move(key), std::move(value));
}

void Extent::add(const Value& part) {
  const Extent other = part.extent();
  depth = std::max(depth, other.depth + 1);
  weight += other.weight;
  if (depth > kMaxDepth) fail("a value is nested more than ", kMaxDepth, " deep");
  if (weight > kMaxWeight) fail("a value is too large");
}

Value::Value(List value) {
  value.extent = {};
  for (const Value& item : value.items) value.extent.add(item);
  data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Dict value) {
  value.extent_ = {};
  for (const auto& [key, item] : value.items_) {
    value.extent_.add(key);
    value.extent_.add(item);
  }
  data_ = std::make_shared<const Dict>(std::move(value));
}

Extent Value::extent() const {
  if (const std::string* text = string())
    return {.weight = 1 + static_cast<std::int64_t>(text->size() / 8)};
  if (const List* items = list()) return items->extent;
  if (const Dict* items = dict()) return items->extent_;
  if (const Namespace* space = name_space()) return space->extent;
  if (const Callable* function = callable()) return function->extent;
  return {};
}

std::optional<std::int64_t> Value::integer() const {
  if (const bool* truth = get<bool>()) return *truth ? 1 : 0;
  if (const auto* whole = get<std::int64_t>()) return *whole;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto whole = integer()) return static_cast<double>(*whole);
  if (const double* real = get<double>()) return *real;
  return std::nullopt;
}

bool Value::truth() const {
  if (const bool* truth = get<bool>()) return *truth;
  if (const std::int64_t* whole = get<std::int64_t>()) return *whole != 0;
  if (const double* real = get<double>()) return *real != 0;
  if (const std::string* text = string()) return !text->empty();
  if (const List* items = list()) return !items->items.empty();
  if (const Dict* items = dict()) return items->size() > 0;
  return !undefined() && !none();
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "none", "boolean", "integer",   "float",
                                    "string",    "list", "dict",    "namespace", "function"};
  return kNames[data_.index()];
}

bool equal(const Value& a, const Value& b) {
  if (const std::string* text = a.string()) return b.string() != nullptr && *text == *b.string();
  const auto whole_a = a.integer();
  const auto whole_b = b.integer();
  if (whole_a && whole_b) return *whole_a == *whole_b;
  if (const auto x = a.number()) return x == b.number();
  if (const List* list = a.list()) {
    const List* other = b.list();
    return other != nullptr && list->tuple == other->tuple &&
           std::ranges::equal(list->items, other->items, equal);
  }
  if (const Dict* dict = a.dict()) {
    const Dict* other = b.dict();
    return other != nullptr && dict->size() == other->size() &&
           std::ranges::all_of(dict->items(), [&](const auto& item) {
             const Value* found = other->find(item.first);
             return found != nullptr && equal(item.second, *found);
           });
  }
  if (a.none()) return b.none();
  if (a.undefined()) return b.undefined();
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  return a.callable() == b.callable();
}

int compare(const Value& a, const Value& b) {
  const auto whole_a = a.integer();
  const auto whole_b = b.integer();
  if (whole_a && whole_b) return *whole_a < *whole_b ? -1 : *whole_a > *whole_b;
  const auto x = a.number(), y = b.number();
  if (x && y) return *x < *y ? -1 : *x > *y;
  if (a.string() != nullptr && b.string() != nullptr) return a.string()->compare(*b.string());
  const List* left = a.list();
  const List* right = b.list();
  if (left != nullptr && right != nullptr) {
    for (std::size_t i = 0; i < left->items.size() && i < right->items.size(); ++i) {
      if (!equal(left->items[i], right->items[i])) return compare(left->items[i], right->items[i]);
    }
    return left->items.size() < right->items.size() ? -1 : left->items.size() > right->items.size();
  }
  fail("'<' is not defined between ", a.type_name(), " and ", b.type_name());
}

}  // namespace nvllm::jinja
