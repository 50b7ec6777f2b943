#include "launcher/cli/yaml_config.h"

#include <algorithm>

#include "base/bounded_json.h"
#include "launcher/cli/option_value.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

bool blank(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t\r");
  return at == text.npos || text[at] == '#';
}

// A nonempty line and its position in the text.
struct Line {
  std::string_view text;  // without the spaces before it
  std::size_t number = 0, begin = 0, indent = 0;
  bool item() const { return text == "-" || text.starts_with("- "); }
};

// Reads the value of one line.
class ValueReader {
 public:
  ValueReader(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  // The key before a colon, which is skipped; an Error if the line has none.
  std::string key() {
    std::string name;
    if (next() == '"' || next() == '\'') {
      name = quoted();
      skip_spaces();
    } else {
      const std::size_t end =
          std::min(text_.find(": "), text_.ends_with(':') ? text_.size() - 1 : text_.npos);
      if (end == text_.npos) refuse(where_, ": '", shown(), "' is no option; write KEY: VALUE");
      name = text_.substr(0, end);
      name.erase(name.find_last_not_of(' ') + 1);
      at_ = end;
    }
    if (next() != ':') refuse(where_, ": no colon behind the key; write KEY: VALUE");
    ++at_;
    return name;
  }

  // The rest of the line; null if it is empty. plain: set to the value as written, if it has no
  // quotes.
  Json value(std::string& plain) {
    skip_spaces();
    if (blank(text_.substr(at_))) return nullptr;
    const Json value = one(plain, 0);
    skip_spaces();
    if (!blank(text_.substr(at_)) || (at_ < text_.size() && !blank(text_.substr(at_ - 1, 1)))) {
      refuse(where_, ": '", text_.substr(at_, 20), "' behind the value; put texts in quotes");
    }
    return value;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_spaces() {
    while (next() == ' ' || next() == '\t') ++at_;
  }
  std::string shown() const { return std::string(text_.substr(0, 40)); }

  Json one(std::string& plain, int depth) {
    const char first = next();
    if (first == '"' || first == '\'') return quoted();
    if (first == '[') return list(depth);
    if (first == '{') return object();
    plain = unquoted(depth > 0);
    return scalar(plain);
  }

  std::string quoted() {
    const char quote = next();
    const std::size_t begin = at_++;
    std::string text;
    while (true) {
      if (at_ >= text_.size()) refuse(where_, ": a text in quotes does not end in its line");
      if (text_[at_] == '\\' && quote == '"') {
        at_ += 2;
      } else if (text_[at_] != quote) {
        text += text_[at_++];
      } else if (quote == '\'' && at_ + 1 < text_.size() && text_[at_ + 1] == '\'') {
        text += '\'';
        at_ += 2;
      } else {
        break;
      }
    }
    ++at_;
    return quote == '\'' ? text : json(text_.substr(begin, at_ - begin)).get<std::string>();
  }

  Json list(int depth) {
    if (depth == kMaxJsonDepth) refuse(where_, ": nested deeper than ", kMaxJsonDepth, " levels");
    Json all = Json::array();
    ++at_;
    while (true) {
      skip_spaces();
      if (next() == '\0' || next() == '#') refuse(where_, ": a list does not end in its line");
      if (next() == ']') break;
      std::string plain;
      all.push_back(one(plain, depth + 1));
      skip_spaces();
      if (next() == ',')
        ++at_;
      else if (next() != ']')
        refuse(where_, ": a list has its values in quotes, with commas between them");
    }
    ++at_;
    return all;
  }

  // A JSON object, which is valid YAML; it ends with the line.
  Json object() {
    const std::string_view rest = text_.substr(at_);
    const std::size_t end = rest.find_last_of('}');
    if (end == rest.npos) refuse(where_, ": an object does not end in its line");
    at_ += end + 1;
    return json(rest.substr(0, end + 1));
  }

  Json json(std::string_view text) const {
    try {
      return parse_nested_json(text, where_);
    } catch (const BadJson& error) {
      if (error.kind() != BadJson::Kind::syntax) refuse(error.what());
      refuse(where_, ": ", text.substr(0, 40), " is no valid JSON");
    }
  }

  std::string unquoted(bool in_list) {
    constexpr std::string_view kOther = "&*!|>%@`";
    if (kOther.find(next()) != kOther.npos) {
      refuse(where_, ": '", next(),
             "' begins what is not understood here; put a text in quotes, "
             "one of several lines as \"a\\nb\"");
    }
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      if (in_list && (next() == ',' || next() == ']')) break;
      if (next() == '#' && at_ > begin && blank(text_.substr(at_ - 1, 1))) break;
      if (next() == ':' && (at_ + 1 == text_.size() || text_[at_ + 1] == ' ')) {
        refuse(where_,
               ": a key below a key; options have no parts, and texts with ': ' are in quotes");
      }
      ++at_;
    }
    std::string text(text_.substr(begin, at_ - begin));
    text.erase(text.find_last_not_of(" \t\r") + 1);
    return text;
  }

  static Json scalar(const std::string& text) {
    if (text == "true" || text == "True" || text == "TRUE") return true;
    if (text == "false" || text == "False" || text == "FALSE") return false;
    if (text == "null" || text == "~" || text.empty()) return nullptr;
    const bool number = text.find_first_not_of("+-.0123456789eE") == text.npos;
    const Json value = number ? Json::parse(text, nullptr, false) : Json();
    return value.is_number() ? value : Json(text);
  }

  std::string_view text_;
  const std::string where_;
  std::size_t at_ = 0;
};

std::vector<Line> lines_of(std::string_view text, const std::string& what) {
  std::vector<Line> lines;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const bool marks_begin = lines.empty() && line.starts_with("---") && blank(line.substr(3));
    if (!blank(line) && !marks_begin) {
      if (line[indent] == '\t') {
        refuse(what, ", line ", number, ": begins with a tab; use spaces");
      }
      lines.push_back({line.substr(indent), number, begin + indent, indent});
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& what) {
  std::vector<YamlEntry> entries;
  bool takes_items = false;  // the last key has no value, so a list may follow
  std::size_t item_indent = std::string_view::npos;  // of the current list; npos: it has no item
  for (const Line& line : lines_of(text, what)) {
    const std::string where = str(what, ", line ", line.number);
    if (line.item() && takes_items &&
        (item_indent == line.indent || item_indent == std::string_view::npos)) {
      item_indent = line.indent;
      Json& list = entries.back().value;
      if (list.is_null()) list = Json::array();
      std::string plain;
      list.push_back(ValueReader(line.text.substr(1), where).value(plain));
      continue;
    }
    if (line.item()) refuse(where, ": an item of no list; write KEY: above it");
    if (line.indent > 0) {
      refuse(where,
             ": a key below a key; options have no parts, write each as KEY: VALUE "
             "at the beginning of its line");
    }
    ValueReader reader(line.text, where);
    YamlEntry entry{.key = reader.key(), .at = line.begin, .value = nullptr};
    entry.value = reader.value(entry.plain);
    takes_items = entry.value.is_null() && entry.plain.empty();
    item_indent = std::string_view::npos;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace nvllm::launcher
