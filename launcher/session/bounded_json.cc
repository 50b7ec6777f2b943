#include "launcher/session/bounded_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "launcher/session/request_fields.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

// Builds the value while the parser reads.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.size() == 1) field_ = name;
    Json& object = *open_.back();
    if (object.size() >= limits_.max_keys) {
      refuse(str("an object with more than ", limits_.max_keys, " names"));
    }
    const auto [place, is_new] = object.emplace(name, nullptr);
    if (!is_new) refuse(str("the name ", shown(name), " is there twice"));
    next_ = &*place;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) refuse("a number that is too large");
    refuse(str("no valid JSON at ", limits_.position, ' ', byte));
  }

  Json take() { return std::move(root_); }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw BadJson(what, field_); }

  Json& place(Json value) {
    if (++values_ > limits_.max_values) {
      refuse(str("there are more than ", limits_.max_values, " values"));
    }
    if (open_.empty()) return root_ = std::move(value);
    if (next_ != nullptr) return *std::exchange(next_, nullptr) = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= limits_.max_depth) {
      refuse(str("nested more than ", limits_.max_depth, " deep"));
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    if (open_.size() == 1) field_.clear();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  // The objects and lists that are not closed. Each is the last value of the one before it, so none
  // moves while it is open.
  std::vector<Json*> open_;
  Json* next_ = nullptr;  // the value of the name that was read
  std::string field_;     // the name in the outermost object that is being read
  std::size_t values_ = 0;
};

}  // namespace

Json read_bounded_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace nvllm::launcher
