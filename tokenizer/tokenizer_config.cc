#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json_text.h"
#include "tokenizer/component_json.h"
#include "tokenizer/tokenizer_json.h"

namespace nvllm::tokenizer {
namespace {

using Json = nlohmann::json;

// A token is written as a string, or as an object with its content.
std::optional<std::string> token_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  return (found->is_object() ? found->at("content") : *found).get<std::string>();
}

std::optional<bool> bool_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  return found->get<bool>();
}

// One template, or a list of named ones, of which "default" is meant.
std::optional<std::string> chat_template(const Json& json) {
  const auto found = json.find("chat_template");
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  for (const Json& item : *found) {
    if (item.at("name") == "default") return item.at("template").get<std::string>();
  }
  return std::nullopt;
}

std::vector<AddedToken> added_tokens(const Json& json) {
  const auto found = json.find("added_tokens_decoder");
  if (found == json.end() || found->is_null()) return {};
  std::vector<std::pair<unsigned long, Json>> by_id;
  for (const auto& [id, token] : found->items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
      fail("added_tokens_decoder: \"", id, "\" is not a token id");
    }
    by_id.emplace_back(std::stoul(id), token);
  }
  std::ranges::stable_sort(by_id, {}, &std::pair<unsigned long, Json>::first);
  Json list = Json::array();
  for (auto& [id, token] : by_id) list.push_back(std::move(token));
  return parse_added_tokens(json_text(list));
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view text) {
  try {
    const Json json = parse_json(text);
    if (!json.is_object()) fail("it is not an object");
    return {.bos_token = token_at(json, "bos_token"),
            .eos_token = token_at(json, "eos_token"),
            .pad_token = token_at(json, "pad_token"),
            .unk_token = token_at(json, "unk_token"),
            .add_bos_token = bool_at(json, "add_bos_token"),
            .add_eos_token = bool_at(json, "add_eos_token"),
            .chat_template = chat_template(json),
            .added_tokens = added_tokens(json)};
  } catch (const Json::exception& error) {
    fail(error.what());
  }
}

}  // namespace nvllm::tokenizer
