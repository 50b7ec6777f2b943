#include <algorithm>
#include <bit>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
namespace {

// Strings compare case-insensitively, unless the caller requests otherwise.
Value sort_key(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.string() != nullptr ? Value(lower(*value.string())) : value;
}

struct Keyed {
  Value key;
  Value item;
};

// The items with the keys that sort, groupby, unique, min and max use.
std::vector<Keyed> keyed_items(Interpreter& interpreter, const Value& value, const Value& path,
                               bool case_sensitive) {
  // Charged before the keys are created, including their comparisons.
  const std::vector<Value> items = items_of(interpreter, value);
  interpreter.charge(value.weight() * 8 * static_cast<std::int64_t>(std::bit_width(items.size())));
  interpreter.charge_values(items.size());
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    keyed.push_back(
        {sort_key(path.none() ? item : part_of(interpreter, item, path), case_sensitive), item});
  }
  return keyed;
}

void sort_keyed(std::vector<Keyed>& keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(b.key, a.key) < 0 : compare(a.key, b.key) < 0;
  });
}

Value items_only(const std::vector<Keyed>& keyed) {
  List list;
  for (const Keyed& one : keyed) list.items.push_back(one.item);
  return list;
}

}  // namespace

Value part_of(Interpreter& interpreter, const Value& item, const Value& path) {
  if (path.string() == nullptr) return subscript(interpreter, item, path);
  Value value = item;
  for (const std::string_view name : split_at(interpreter, *path.string(), ".", -1)) {
    const auto index = small_index(name);
    value = subscript(interpreter, value, index ? Value(*index) : Value(name));
  }
  return value;
}

Value sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const bool reverse = arguments.take_truth("reverse", false);
  const bool case_sensitive = arguments.take_truth("case_sensitive", false);
  auto keyed =
      keyed_items(interpreter, value, arguments.take("attribute", Value()), case_sensitive);
  sort_keyed(keyed, reverse);
  return items_only(keyed);
}

Value dict_sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const Dict* dict = value.dict();
  if (dict == nullptr) fail("dictsort takes a dict, not ", value.type_name());
  const bool case_sensitive = arguments.take_truth("case_sensitive", false);
  const std::string by = arguments.take_text("by", "key");
  const bool reverse = arguments.take_truth("reverse", false);
  if (by != "key" && by != "value") fail("dictsort: 'by' is key or value, not '", by, "'");
  auto keyed = keyed_items(interpreter, Value(pairs_of(interpreter, *dict)),
                           Value(by == "key" ? 0 : 1), case_sensitive);
  sort_keyed(keyed, reverse);
  return items_only(keyed);
}

Value grouped(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const Value path = arguments.take("attribute");
  auto keyed = keyed_items(interpreter, value, path, true);
  sort_keyed(keyed, false);
  List groups;
  for (std::size_t i = 0; i < keyed.size();) {
    List members;
    const Value& key = keyed[i].key;
    std::size_t end = i;
    for (; end < keyed.size() && equal(keyed[end].key, key); ++end)
      members.items.push_back(keyed[end].item);
    groups.items.emplace_back(List{.items = {key, Value(std::move(members))}, .tuple = true});
    i = end;
  }
  return groups;
}

Value unique(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const bool case_sensitive = arguments.take_truth("case_sensitive", false);
  std::vector<Keyed> kept;
  for (Keyed& one :
       keyed_items(interpreter, value, arguments.take("attribute", Value()), case_sensitive)) {
    interpreter.charge(static_cast<std::int64_t>(kept.size()) * 8 + value.weight());
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const Keyed& have) { return equal(have.key, one.key); })) {
      kept.push_back(std::move(one));
    }
  }
  return items_only(kept);
}

Value extreme(Interpreter& interpreter, const Value& value, ArgumentReader& arguments, int sign) {
  const bool case_sensitive = arguments.take_truth("case_sensitive", false);
  const auto keyed =
      keyed_items(interpreter, value, arguments.take("attribute", Value()), case_sensitive);
  if (keyed.empty()) return Undefined{"the largest or smallest of nothing"};
  const Keyed* best = &keyed.front();
  for (const Keyed& one : keyed) {
    if (compare(one.key, best->key) * sign > 0) best = &one;
  }
  return best->item;
}

Value sum(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const Value path = arguments.take("attribute", Value());
  Value total = arguments.take("start", 0);
  for (const Value& item : items_of(interpreter, value)) {
    total =
        arithmetic(interpreter, "+", total, path.none() ? item : part_of(interpreter, item, path));
  }
  return total;
}

}  // namespace nvllm::jinja
