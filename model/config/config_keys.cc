#include "model/config/config_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

const Json kNothing;  // null

Json parse_object(std::string_view text, const std::string& where) {
  Json json = parse_nested_json(text, where);
  if (!json.is_object()) {
    fail(where, ": holds ", json.type_name(), ", not an object such as {\"vocab_size\": 1000}");
  }
  return json;
}

const Json& find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() ? *found : kNothing;
}

// A value as errors show it: cut short if it is long.
std::string shown(const Json& value) {
  constexpr std::size_t kMaxLength = 60;
  if (value.is_object()) return "(an object)";
  if (value.is_array()) return "(a list)";
  std::string text = json_ascii(value);
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + "...";
  return text;
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.items()) {
    Json& target = into[key];
    if (target.is_object() && value.is_object()) {
      merge(target, value);
    } else {
      target = value;
    }
  }
}

// A document whose keys of "text_config" stand at the top.
Json parse_config_object(std::string_view text, const std::string& where) {
  Json json = parse_object(text, where);
  const auto found = json.find("text_config");
  if (found == json.end() || found->is_null()) return json;
  if (!found->is_object()) {
    fail(where, ": text_config ", shown(*found), ": not an object; it must be null or {...}");
  }
  const Json text_config = std::move(*found);
  json.erase(found);
  merge(json, text_config);
  return json;
}

// RoPE's keys of one document in the newer spelling, and how errors name them.
struct RopeKeys {
  Json values = Json::object();
  std::string prefix;          // "rope_scaling."; empty: there are none
  bool theta_at_top = false;   // "rope_theta" is outside of that object
  bool drops_scaling = false;  // rope_scaling or rope_parameters is null
};

RopeKeys rope_keys(const Json& json, const std::string& where) {
  RopeKeys keys;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {  // the newer one wins
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (found->is_null()) {
      keys.drops_scaling = true;
      continue;
    }
    if (!found->is_object()) {
      fail(where, ": ", key, ' ', shown(*found), ": not an object; it must be null or {...}");
    }
    keys.prefix = str(key, '.');
    merge(keys.values, *found);
  }
  const Json& type = find(keys.values, "type");
  if (!type.is_null()) {
    if (find(keys.values, "rope_type").is_null()) keys.values["rope_type"] = type;
    keys.values.erase("type");
  }
  const Json& theta = find(json, "rope_theta");
  if (!theta.is_null() && find(keys.values, "rope_theta").is_null()) {
    keys.values["rope_theta"] = theta;
    keys.theta_at_top = true;
  }
  return keys;
}

// The overrides of RoPE win over the file, whichever spelling either of them uses.
RopeKeys merge_rope(RopeKeys file, const RopeKeys& overrides) {
  if (overrides.drops_scaling && overrides.prefix.empty()) {
    Json theta = find(file.values, "rope_theta");
    file.values = Json::object();
    if (!theta.is_null()) file.values["rope_theta"] = std::move(theta);
  }
  merge(file.values, overrides.values);
  if (!overrides.prefix.empty()) file.prefix = overrides.prefix;
  if (overrides.values.contains("rope_theta")) file.theta_at_top = overrides.theta_at_top;
  return file;
}

}  // namespace

struct ConfigKeys::Document {
  std::string where;
  Json top;
  RopeKeys rope;

  const Json& find(bool in_rope, const std::string& part, const char* key) const {
    const Json& object = in_rope ? rope.values : top;
    return model::find(part.empty() ? object : object.at(part), key);
  }
  std::string name_of(bool in_rope, const std::string& part, const char* key) const {
    if (!part.empty()) return str(rope.prefix, part, '.', key);
    const bool at_top = !in_rope || (rope.theta_at_top && std::string_view(key) == "rope_theta");
    return at_top ? key : rope.prefix + key;
  }
};

ConfigKeys ConfigKeys::parse(std::string_view text, std::string_view overrides,
                             const std::string& where) {
  Document document{.where = where, .top = parse_config_object(text, where), .rope = {}};
  document.rope = rope_keys(document.top, where);
  if (!overrides.empty()) {
    const std::string where_over = str("--hf-overrides ", quoted_text(overrides));
    const Json over = parse_config_object(overrides, where_over);
    document.rope = merge_rope(std::move(document.rope), rope_keys(over, where_over));
    merge(document.top, over);
    document.where += " with --hf-overrides";
  }
  return {std::make_shared<const Document>(std::move(document)), false};
}

std::string quoted_text(std::string_view text) {
  return shown(Json(std::string(text)));
}

ConfigKeys ConfigKeys::rope() const {
  return {document_, true};
}

ConfigKeys ConfigKeys::rope_part(const char* key) const {
  const Json& part = document_->find(true, "", key);
  if (!part.is_object()) rope().refuse(key, "must be an object");
  return {document_, true, key};
}

ConfigKeys ConfigKeys::with_defaults(std::string_view defaults) const {
  auto document = std::make_shared<Document>(*document_);
  const Json values = Json::parse(defaults);
  for (const auto& [key, value] : values.items()) {
    Json& own = document->top[key];
    if (own.is_null()) own = value;
  }
  return {std::move(document), rope_, part_};
}

const std::string& ConfigKeys::where() const {
  return document_->where;
}

bool ConfigKeys::has(const char* key) const {
  return !document_->find(rope_, part_, key).is_null();
}

void ConfigKeys::refuse_with(const char* key, const std::string& why) const {
  const std::string name = document_->name_of(rope_, part_, key);
  if (!has(key)) fail(document_->where, ": ", name, ": ", why);
  fail(document_->where, ": ", name, ' ', shown(document_->find(rope_, part_, key)), ": ", why);
}

std::optional<std::int64_t> ConfigKeys::optional_integer(const char* key,
                                                         IntegerLimits limits) const {
  if (!has(key)) return std::nullopt;
  const std::vector<std::int64_t> all = integers(key, limits);
  if (document_->find(rope_, part_, key).is_array()) refuse(key, "must be one whole number");
  return all.front();
}

std::int64_t ConfigKeys::integer(const char* key, IntegerLimits limits) const {
  if (const auto value = optional_integer(key, limits)) return *value;
  refuse(key, "missing; it must be ", limits.min, " to ", limits.max);
}

std::vector<std::int64_t> ConfigKeys::integers(const char* key, IntegerLimits limits) const {
  std::vector<std::int64_t> all;
  if (!has(key)) return all;
  const Json& value = document_->find(rope_, part_, key);
  const auto add = [&](const Json& one) {
    const auto max = static_cast<std::uint64_t>(limits.max);
    const bool fits =
        one.is_number_unsigned() ? one.get<std::uint64_t>() <= max : one.is_number_integer();
    if (!fits || one.get<std::int64_t>() < limits.min) {
      refuse(key, "must be a whole number from ", limits.min, " to ", limits.max);
    }
    all.push_back(one.get<std::int64_t>());
  };
  if (value.is_array()) {
    std::for_each(value.begin(), value.end(), add);
  } else {
    add(value);
  }
  return all;
}

std::optional<double> ConfigKeys::optional_number(const char* key, NumberLimits limits) const {
  if (!has(key)) return std::nullopt;
  const Json& value = document_->find(rope_, part_, key);
  if (!value.is_number() || !(value.get<double>() >= limits.min) ||
      !(value.get<double>() <= limits.max)) {
    refuse(key, "must be a number from ", limits.min, " to ", limits.max);
  }
  return value.get<double>();
}

double ConfigKeys::number(const char* key, NumberLimits limits) const {
  if (const auto value = optional_number(key, limits)) return *value;
  refuse(key, "missing; it must be a number from ", limits.min, " to ", limits.max);
}

bool ConfigKeys::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  const Json& value = document_->find(rope_, part_, key);
  if (!value.is_boolean()) refuse(key, "must be true or false");
  return value.get<bool>();
}

std::optional<std::string> ConfigKeys::optional_text(const char* key) const {
  if (!has(key)) return std::nullopt;
  const Json& value = document_->find(rope_, part_, key);
  if (!value.is_string()) refuse(key, "must be a text");
  return value.get<std::string>();
}

std::vector<std::string> ConfigKeys::texts(const char* key) const {
  std::vector<std::string> all;
  if (!has(key)) return all;
  const Json& value = document_->find(rope_, part_, key);
  if (!value.is_array()) refuse(key, "must be a list of texts");
  for (const Json& one : value) {
    if (!one.is_string()) refuse(key, "must be a list of texts");
    all.push_back(one.get<std::string>());
  }
  return all;
}

}  // namespace nvllm::model
