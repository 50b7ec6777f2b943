#include "base/bounded_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace nvllm {
namespace {

using Json = nlohmann::json;
using Kind = BadJson::Kind;

// Passes the events of nlohmann's parser on, within the limits.
class LimitedEvents final : public nlohmann::json_sax<Json> {
 public:
  LimitedEvents(const JsonLimits& limits, JsonHandler& handler)
      : limits_(limits), handler_(handler) {}

  bool null() override { return count(), handler_.null(), true; }
  bool boolean(bool value) override { return count(), handler_.boolean(value), true; }
  bool number_integer(number_integer_t value) override {
    return count(), handler_.integer(value), true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    return count(), handler_.unsigned_integer(value), true;
  }
  bool number_float(number_float_t value, const string_t&) override {
    return count(), handler_.real(value), true;
  }
  bool string(string_t& value) override { return count(), handler_.string(std::move(value)), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(), handler_.begin_object(), true; }
  bool start_array(std::size_t) override { return open(), handler_.begin_list(), true; }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (keys_.size() == 1) field_ = name;
    if (++keys_.back() > limits_.max_keys) {
      refuse(Kind::size, str("an object with more than ", limits_.max_keys, " names"));
    }
    std::string shown = limits_.repeated_names ? "" : shown_text(name);
    if (!handler_.key(std::move(name)) && !limits_.repeated_names) {
      refuse(Kind::repeated_name, str("the name \"", shown, "\" is there twice"));
    }
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) refuse(Kind::number, "a number that is too large");
    throw BadJson(Kind::syntax, str("no valid JSON at ", limits_.position, ' ', byte), field_,
                  byte);
  }

 private:
  [[noreturn]] void refuse(Kind kind, const std::string& what) const {
    throw BadJson(kind, what, field_);
  }
  void count() {
    if (++values_ > limits_.max_values) {
      refuse(Kind::size, str("there are more than ", limits_.max_values, " values"));
    }
  }
  void open() {
    count();
    if (keys_.size() >= limits_.max_depth) {
      refuse(Kind::depth, str("nested more than ", limits_.max_depth, " deep"));
    }
    keys_.push_back(0);
  }
  bool close() {
    keys_.pop_back();
    if (keys_.size() == 1) field_.clear();
    handler_.end();
    return true;
  }

  const JsonLimits& limits_;
  JsonHandler& handler_;
  std::vector<std::size_t> keys_;  // how many names each open object has so far
  std::string field_;              // the name in the outermost object that is being read
  std::size_t values_ = 0;
};

// Builds nlohmann's value.
class Builder final : public JsonHandler {
 public:
  void null() override { place(nullptr); }
  void boolean(bool value) override { place(value); }
  void integer(std::int64_t value) override { place(value); }
  void unsigned_integer(std::uint64_t value) override { place(value); }
  void real(double value) override { place(value); }
  void string(std::string value) override { place(std::move(value)); }
  void begin_object() override { open_.push_back(&place(Json::object())); }
  void begin_list() override { open_.push_back(&place(Json::array())); }
  void end() override { open_.pop_back(); }
  bool key(std::string name) override {
    const auto [at, is_new] = open_.back()->emplace(std::move(name), nullptr);
    next_ = &*at;
    return is_new;
  }

  Json take() { return std::move(root_); }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (next_ != nullptr) return *std::exchange(next_, nullptr) = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }

  Json root_;
  // The objects and lists that are not closed. Each is the last value of the one before it, so none
  // moves while it is open.
  std::vector<Json*> open_;
  Json* next_ = nullptr;  // the value of the name that was read
};

// The bytes of the character at the beginning of the text; 0: it is a control, or not UTF-8.
std::size_t visible_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= ' ' && lead != 0x7f ? 1 : 0;
  const std::size_t size = lead < 0xC2   ? 0
                           : lead < 0xE0 ? 2
                           : lead < 0xF0 ? 3
                           : lead < 0xF5 ? 4
                                         : 0;
  if (size == 0 || size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool control = lead == 0xC2 && byte(1) < 0xA0;
  const bool too_long = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool no_character = (lead == 0xED && byte(1) >= 0xA0) || (lead == 0xF4 && byte(1) >= 0x90);
  // U+2028 to U+202E and U+2066 to U+2069: ends of lines, and the direction of text.
  const bool directs = lead == 0xE2 && ((byte(1) == 0x80 && byte(2) >= 0xA8 && byte(2) <= 0xAE) ||
                                        (byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9));
  return control || too_long || no_character || directs ? 0 : size;
}

}  // namespace

void read_bounded_json(std::string_view text, const JsonLimits& limits, JsonHandler& handler) {
  if (text.size() > limits.max_bytes) {
    throw BadJson(Kind::size,
                  str("expected at most ", limits.max_bytes, " bytes, found ", text.size()));
  }
  LimitedEvents events(limits, handler);
  Json::sax_parse(text, &events);
}

Json read_bounded_json(std::string_view text, const JsonLimits& limits) {
  Builder builder;
  read_bounded_json(text, limits, builder);
  return builder.take();
}

Json parse_nested_json(std::string_view text, const std::string& where) {
  constexpr std::size_t kMany = std::size_t{1} << 21;
  try {
    return read_bounded_json(
        text, {.max_depth = kMaxJsonDepth, .max_keys = kMany, .repeated_names = true});
  } catch (const BadJson& error) {
    std::string what = error.what();
    switch (error.kind()) {
      case Kind::syntax: what = "no valid JSON at " + line_and_column(text, error.byte()); break;
      case Kind::number: what = "holds a number that is too large"; break;
      case Kind::depth: what = str("nested deeper than ", kMaxJsonDepth, " levels"); break;
      case Kind::size:
      case Kind::repeated_name: break;
    }
    throw BadJson(error.kind(), str(where, ": ", what), error.field(), error.byte());
  }
}

std::string shown_text(std::string_view text, std::size_t max_bytes) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = visible_character(text.substr(at));
    if (line.size() + std::max<std::size_t>(size, 1) > max_bytes) return line + "...";
    line += size == 0 ? "?" : text.substr(at, size);
    at += std::max<std::size_t>(size, 1);
  }
  return line;
}

}  // namespace nvllm
