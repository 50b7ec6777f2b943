// --config FILE: reads options from a YAML or JSON file.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/bounded_json.h"
#include "base/json_text.h"
#include "base/text.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/suggestions.h"
#include "launcher/cli/yaml_config.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

std::string read_text(const std::string& path, const std::string& what) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(what, ": ", errno_text(errno), "; pass a file of options, as YAML or JSON");
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) refuse(what, ": cannot be read; pass a file of options, as YAML or JSON");
  text.resize(static_cast<std::size_t>(file.gcount()));
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (text.size() > kMaxFileBytes) {
    refuse(what, ": is larger than 1 MiB; pass a file of options, as YAML or JSON");
  }
  return text;
}

Json parse(const std::string& text, const std::string& what) {
  Json json = or_refuse([&] { return parse_nested_json(text, what); });
  if (!json.is_object()) {
    refuse(what, ": holds ", json.type_name(), ", not an object such as {\"tp\": 2}");
  }
  return json;
}

struct Key {
  std::string name;
  std::string place;
};

// The position after the closing quote of the string that starts at text[begin].
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  std::size_t at = begin + 1;
  while (text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return at + 1;
}

// The keys of a JSON object, including duplicates. The text is valid JSON.
std::vector<Key> keys_of(std::string_view text) {
  std::vector<Key> keys;
  int depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '"') {
      depth += (text[at] == '{' || text[at] == '[') ? 1 : 0;
      depth -= (text[at] == '}' || text[at] == ']') ? 1 : 0;
      ++at;
      continue;
    }
    const std::size_t end = end_of_string(text, at);
    const std::size_t next = text.find_first_not_of(" \t\r\n", end);
    if (depth == 1 && next != text.npos && text[next] == ':') {
      keys.push_back({parse_json(text.substr(at, end - at)), line_and_column(text, at + 1)});
    }
    at = end;
  }
  return keys;
}

struct Entry {
  Key key;
  Json value;
  std::string plain = "";  // in YAML: the value as written, if it has no quotes
};

// A file that starts like JSON is JSON; a blank one has no options.
std::vector<Entry> entries_of(const std::string& text, const std::string& what) {
  std::vector<Entry> entries;
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return entries;
  if (std::string_view("{[\"").find(text[begin]) != std::string::npos) {
    const Json json = parse(text, what);
    for (Key& key : keys_of(text)) {
      Json value = json.at(key.name);
      entries.push_back({std::move(key), std::move(value)});
    }
    return entries;
  }
  for (YamlEntry& entry : parse_yaml(text, what)) {
    entries.push_back({{std::move(entry.key), line_and_column(text, entry.at + 1)},
                       std::move(entry.value),
                       std::move(entry.plain)});
  }
  return entries;
}

// YAML without quotes is interpreted according to the option: "off" is false for a switch and a
// word for others; a number is a name if a text is expected.
void fit_plain_value(Entry& entry, const OptionRow& row) {
  if (entry.plain.empty() || entry.value.is_null()) return;
  const std::string& plain = entry.plain;
  if (row.value == nullptr) {
    if (plain == "on" || plain == "yes") entry.value = true;
    if (plain == "off" || plain == "no") entry.value = false;
    return;
  }
  const ValueShape shape = shape_of(row.value);
  if (!shape.number && !shape.list && !shape.json) entry.value = plain;
}

// The types that a file may use for an option, for errors: "a number, a text or none".
std::string wanted(const OptionRow& row) {
  if (row.value == nullptr) return "true or false";
  const ValueShape shape = shape_of(row.value);
  if (shape.json) return "an object";
  if (shape.list)
    return row.repeats ? "a list of numbers, or a list of such lists" : "a list of numbers";
  if (shape.number) return "a number";
  return row.repeats ? "a text, or a list of texts" : "a text";
}

// A value in error messages: for a long one only its kind.
std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = json_ascii(value);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// Converts the value of one key to its form on the command line.
class Translator {
 public:
  Translator(const OptionRow& row, const Key& key, std::string place)
      : row_(row), key_(key), place_(std::move(place)) {
    if (row.value != nullptr) shape_ = shape_of(row.value);
  }

  std::vector<ConfigEntry> entries(const Json& value) const {
    if (row_.value == nullptr) return switch_entries(value);
    std::vector<ConfigEntry> all;
    if (row_.repeats && value.is_array() && !is_list(value)) {
      for (const Json& one : value) all.push_back(entry(row_.name, text(one)));
      if (all.empty()) refuse_type(value);
    } else {
      all.push_back(entry(row_.name, text(value)));
    }
    return all;
  }

 private:
  std::vector<ConfigEntry> switch_entries(const Json& value) const {
    if (!value.is_boolean()) refuse_type(value);
    const bool opposite = row_.second_name != nullptr && dashed(key_.name) == row_.second_name;
    if (value.get<bool>() != opposite) return {entry(row_.name, "")};
    if (row_.second_name != nullptr) return {entry(row_.second_name, "")};
    return {};  // it is off unless it is turned on
  }

  ConfigEntry entry(const char* name, std::string text) const {
    return {.row = &row_, .name = name, .text = std::move(text), .place = place_};
  }

  bool is_list(const Json& value) const {
    return shape_.list && value.is_array() && !value.empty() &&
           std::all_of(value.begin(), value.end(), [](const Json& one) { return one.is_number(); });
  }

  std::string text(const Json& value) const {
    if (value.is_string()) return value;
    if (value.is_number() && (shape_.number || shape_.list)) return json_text(value);
    if (value.is_object() && shape_.json) return json_text(value);
    if (!is_list(value)) refuse_type(value);
    std::string all;
    for (const Json& one : value) all += str(all.empty() ? "" : ",", json_text(one));
    return all;
  }

  [[noreturn]] void refuse_type(const Json& value) const {
    refuse(place_, ": ", key_.name, " is ", shown(value), "; give ", wanted(row_));
  }

  const OptionRow& row_;
  const Key& key_;
  std::string place_;
  ValueShape shape_ = {};
};

const OptionRow& find_row(const Command& command, const Key& key, const std::string& place) {
  const std::string name = dashed(key.name);
  std::vector<std::string> known;
  for (const OptionRow& row : command.rows) {
    for (const char* const one : {row.name, row.second_name}) {
      if (one == nullptr || one == std::string_view("--config")) continue;
      if (name == one) return row;
      known.emplace_back(one + 2);
    }
  }
  if (name == "--config") refuse(place, ": config: a file cannot name another one");
  if (const std::string_view answer = hint_for_option(name); !answer.empty()) {
    refuse(place, ": ", key.name, ": ", answer);
  }
  const std::string nearest = nearest_name(std::string_view(name).substr(2), known);
  if (!nearest.empty()) {
    refuse(place, ": unknown key '", key.name, "'; did you mean '", nearest, "'?");
  }
  refuse(place, ": unknown key '", key.name, "'; see nvllm-launch ", command.name, " --help");
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path, const Command& command) {
  const std::string what = "--config " + path;
  const std::string text = read_text(path, what);
  std::vector<ConfigEntry> all;
  std::map<const OptionRow*, Key> seen;
  for (Entry& entry : entries_of(text, what)) {
    const Key& key = entry.key;
    const std::string place = str(what, ", ", key.place);
    const OptionRow& row = find_row(command, key, place);
    const auto [before, is_new] = seen.try_emplace(&row, key);
    if (!is_new) {
      refuse(place, ": ", key.name, " again: ", before->second.place, " has ", before->second.name,
             "; leave one of them out");
    }
    fit_plain_value(entry, row);
    const auto entries = Translator(row, key, place).entries(entry.value);
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

}  // namespace nvllm::launcher
