#include "tokenizer/jinja/value.h"

#include <algorithm>

#include "base/error.h"

namespace nvllm::jinja {

std::size_t Dict::place_of(const Value& key) const {
  if (const std::string* text = key.string()) return place_of_text(*text);
  const auto found = std::ranges::find_if(
      others_, [&](std::size_t item) { return equal(items_[item].first, key); });
  return found == others_.end() ? items_.size() : *found;
}

std::size_t Dict::place_of_text(std::string_view key) const {
  if (!texts_.empty()) {
    const auto found = texts_.find(key);
    return found == texts_.end() ? items_.size() : found->second;
  }
  std::size_t item = 0;
  for (; item < items_.size(); ++item) {
    const std::string* text = items_[item].first.string();
    if (text != nullptr && *text == key) break;
  }
  return item;
}

const Value* Dict::find(const Value& key) const {
  const std::size_t item = place_of(key);
  return item == items_.size() ? nullptr : &items_[item].second;
}

const Value* Dict::get(std::string_view key) const {
  const std::size_t item = place_of_text(key);
  return item == items_.size() ? nullptr : &items_[item].second;
}

void Dict::set(Value key, Value value) {
  if (const std::size_t item = place_of(key); item < items_.size()) {
    items_[item].second = std::move(value);
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() == kFew + 1) {
    others_.clear();
    for (std::size_t item = 0; item <= kFew; ++item) add_to_index(item);
  } else {
    add_to_index(items_.size() - 1);
  }
}

void Dict::add_to_index(std::size_t item) {
  const std::string* text = items_[item].first.string();
  if (text == nullptr) {
    others_.push_back(item);
    if (others_.size() > kMaxOtherKeys) {
      fail("a dict has more than ", kMaxOtherKeys, " keys that are no strings");
    }
  } else if (items_.size() > kFew) {
    texts_.emplace(*text, item);
  }
}

void Dict::clear() {
  texts_.clear();
  others_.clear();
  items_.clear();
}

void Extent::add(const Value& part) {
  const Extent other = part.extent();
  depth = std::max(depth, other.depth + 1);
  weight += other.weight;
  marked = marked || other.marked;
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
  if (const MarkedText* text = marked_text()) {
    const auto& ranges = text->marks.ranges();
    return {.weight = 1 + static_cast<std::int64_t>(text->text.size() / 8 + ranges.size() * 2),
            .marked = !ranges.empty()};
  }
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

Value from_outside(const Value& value) {
  if (const std::string* text = value.string()) return MarkedText::outside(*text);
  if (const List* list = value.list()) {
    List marked{.items = {}, .tuple = list->tuple};
    for (const Value& item : list->items) marked.items.push_back(from_outside(item));
    return marked;
  }
  if (const Dict* dict = value.dict()) {
    Dict marked;
    for (const auto& [key, item] : dict->items()) marked.set(from_outside(key), from_outside(item));
    return marked;
  }
  return value;
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
      const Value& x = left->items[i];
      const Value& y = right->items[i];
      // Lists are compared once, not once per nesting level.
      if (x.list() != nullptr && y.list() != nullptr && x.list()->tuple == y.list()->tuple) {
        if (const int order = compare(x, y); order != 0) return order;
      } else if (!equal(x, y)) {
        return compare(x, y);
      }
    }
    return left->items.size() < right->items.size() ? -1 : left->items.size() > right->items.size();
  }
  fail("'<' is not defined between ", a.type_name(), " and ", b.type_name());
}

}  // namespace nvllm::jinja
