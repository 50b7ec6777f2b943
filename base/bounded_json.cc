#include "base/bounded_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/visible_text.h"

namespace nvllm {
namespace {

using Json = nlohmann::json;
using Kind = BadJson::Kind;

// Forwards the events of nlohmann's parser, within the limits.
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
    if (!handler_.key(name) && !limits_.repeated_names) {
      refuse(Kind::repeated_name, str("the name \"", shown_text(name), "\" is there twice"));
    }
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) refuse(Kind::number, "a number that is too large");
    throw BadJson(Kind::syntax, str("no valid JSON at ", limits_.position, ' ', byte, why(error)),
                  field_, byte);
  }

 private:
  // What is wrong with the encoding, which cannot be seen at the position.
  static const char* why(const nlohmann::detail::exception& error) {
    std::string_view text = error.what();
    text = text.substr(0, text.find("; last read"));  // what follows is the JSON's
    if (text.find("UTF-8") != text.npos) return ": the text is not UTF-8";
    if (text.find("surrogate") != text.npos) return ": half of a surrogate pair is not UTF-8";
    return "";
  }
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
  std::vector<std::size_t> keys_;  // number of names so far in each open object
  std::string field_;              // the current name in the outermost object
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
  // The open objects and lists. Each is the last value of its parent, so none is moved while it is
  // open.
  std::vector<Json*> open_;
  Json* next_ = nullptr;  // the value for the name that was read
};

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
  constexpr std::size_t kLongestCharacter = 4;
  const bool long_text = text.size() > max_bytes;
  std::string line = visible_text(
      text.substr(0, long_text ? max_bytes + kLongestCharacter : text.npos), Breaks::none);
  if (line.size() <= max_bytes) return line;
  const auto is_inside_character = [&](std::size_t at) {
    return (static_cast<unsigned char>(line[at]) & 0xC0) == 0x80;
  };
  std::size_t end = max_bytes;
  while (end > 0 && is_inside_character(end)) --end;
  return line.substr(0, end) + "...";
}

}  // namespace nvllm
