#include "launcher/serve/api/request_body.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "launcher/serve/api/api_call.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

// Builds the value while the parser reads, so that the limits hold before memory is spent.
class BodyBuilder final : public nlohmann::json_sax<Json> {
 public:
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
    if (object.size() >= BodyLimits::kMaxKeys) {
      refuse(str("an object with more than ", BodyLimits::kMaxKeys, " names"));
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
    refuse(str("no valid JSON at byte ", byte));
  }

  Json take() { return std::move(root_); }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ApiError(400, str(field_.empty() ? "the body" : shown(field_), ": ", what), field_);
  }

  Json& place(Json value) {
    if (++values_ > BodyLimits::kMaxValues) {
      refuse(str("the body holds more than ", BodyLimits::kMaxValues, " values"));
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
    if (open_.size() >= BodyLimits::kMaxDepth) {
      refuse(str("nested more than ", BodyLimits::kMaxDepth, " deep"));
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    if (open_.size() == 1) field_.clear();
    return true;
  }

  Json root_;
  // The objects and lists that are not closed. Each is the last value of the one before it, so none
  // moves while it is open.
  std::vector<Json*> open_;
  Json* next_ = nullptr;  // the value of the name that was read
  std::string field_;     // the name in the body that is being read
  std::size_t values_ = 0;
};

}  // namespace

Json parse_body(std::string_view body) {
  BodyBuilder builder;
  Json::sax_parse(body, &builder);
  Json json = builder.take();
  if (!json.is_object()) {
    throw ApiError(400, str("the body holds ", shown(json), ", not an object"));
  }
  return json;
}

}  // namespace nvllm::launcher
