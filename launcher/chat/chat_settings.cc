#include "launcher/chat/chat_settings.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/suggestions.h"

namespace nvllm::launcher {
namespace {

using runtime::SamplingParams;

std::string text_of(double value) {
  return str(value);
}
std::string text_of(std::int32_t value) {
  return str(value);
}
std::string text_of(bool value) {
  return value ? "on" : "off";
}
template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? str(*value) : "off";
}
std::string text_of(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += str(text.empty() ? "" : ",", id);
  return text.empty() ? "off" : text;
}

struct Setting {
  const char* name;
  std::string (*value)(const SamplingParams& params);
};

// The command line's options, whose help explains them, and the seed of an answer.
constexpr Setting kSettings[] = {
    {"temperature", [](const SamplingParams& p) { return text_of(p.temperature); }},
    {"top-p", [](const SamplingParams& p) { return text_of(p.top_p); }},
    {"top-k", [](const SamplingParams& p) { return text_of(p.top_k); }},
    {"min-p", [](const SamplingParams& p) { return text_of(p.min_p); }},
    {"repetition-penalty", [](const SamplingParams& p) { return text_of(p.repetition_penalty); }},
    {"presence-penalty", [](const SamplingParams& p) { return text_of(p.presence_penalty); }},
    {"frequency-penalty", [](const SamplingParams& p) { return text_of(p.frequency_penalty); }},
    {"max-tokens", [](const SamplingParams& p) { return text_of(p.max_tokens); }},
    {"min-tokens", [](const SamplingParams& p) { return text_of(p.min_tokens); }},
    {"ignore-eos", [](const SamplingParams& p) { return text_of(p.ignore_eos); }},
    {"stop-token-ids", [](const SamplingParams& p) { return text_of(p.stop_token_ids); }},
    {"seed", [](const SamplingParams& p) { return text_of(p.seed); }},
};

const OptionRow& row_of(const OptionRows& rows, const std::string& name) {
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const OptionRow& row) { return row.name == "--" + name; });
}

// Sets a value like the option of the command line.
void set_as_option(const std::string& name, const std::string& value, SamplingParams& params) {
  const OptionRows rows = chat_sampling_rows();
  const OptionRow& row = row_of(rows, name);
  Options options;
  if (row.value == nullptr) {
    if (value != "on" && value != "off") fail("/set ", name, " '", value, "': pass on or off");
    row.store(options, OptionValue(value == "on" ? row.name : row.second_name, ""));
  } else {
    row.store(options, OptionValue(row.name, value));
  }
  apply_sampling(options.sampling, params);
}

std::string quoted(const std::string& text) {
  return json_text(nlohmann::json(text));
}

}  // namespace

std::vector<std::string> ChatSettings::names() {
  std::vector<std::string> all;
  for (const Setting& setting : kSettings) all.emplace_back(setting.name);
  all.emplace_back("stop");
  return all;
}

namespace {

std::string known_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  const std::vector<std::string> known = ChatSettings::names();
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  const std::string nearest = nearest_name(name, known);
  fail("/set ", name, ": no such option; ",
       nearest.empty() ? "/set alone shows all" : "did you mean " + nearest + "?");
}

}  // namespace

std::string ChatSettings::value_of(const std::string& name) const {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return setting.value(sampling_);
  }
  std::string text;
  for (const std::string& stop : stops_) text += (text.empty() ? "" : ", ") + quoted(stop);
  return text.empty() ? "off" : text;
}

std::string ChatSettings::show() const {
  std::string text;
  for (const std::string& name : names()) {
    text += str(text.empty() ? "" : "\n", name, std::string(20 - name.size(), ' '), value_of(name));
  }
  return text;
}

std::string ChatSettings::show(const std::string& name) const {
  const std::string known = known_name(name);
  return str(known, " is ", value_of(known));
}

std::string ChatSettings::set(const std::string& given, const std::string& value) {
  const std::string name = known_name(given);
  const bool off = value == "off" || value == "none";
  SamplingParams changed = sampling_;
  if (name == "stop") {
    set_stops(off ? "[]" : value);
  } else if (name == "seed") {
    changed.seed.reset();
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (!off) changed.seed = OptionValue("--seed", value).as<std::uint64_t>(0, kMax);
  } else if (name == "max-tokens" && off) {
    changed.max_tokens.reset();
  } else if (name == "stop-token-ids" && off) {
    changed.stop_token_ids.clear();
  } else {
    set_as_option(name, value, changed);
  }
  runtime::check_sampling_params(changed);
  sampling_ = changed;
  return show(name);
}

// A plain text, or JSON: "\n\n", ["a", "b"].
void ChatSettings::set_stops(const std::string& value) {
  if (!value.starts_with('"') && !value.starts_with('[')) {
    stops_ = {value};
    return;
  }
  nlohmann::json json;
  try {
    json = parse_json(value);
  } catch (const nlohmann::json::exception&) {  // reported below, like any other invalid value
  }
  const auto is_text = [](const nlohmann::json& one) {
    return one.is_string() && !one.get_ref<const std::string&>().empty();
  };
  if (is_text(json)) {
    stops_ = {json.get<std::string>()};
  } else if (json.is_array() && std::all_of(json.begin(), json.end(), is_text)) {
    stops_ = json.get<std::vector<std::string>>();
  } else {
    fail("/set stop ", value,
         ": neither a text nor a list of texts, such as [\"###\", \"\\n\\n\"]");
  }
}

}  // namespace nvllm::launcher
