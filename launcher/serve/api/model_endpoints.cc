// Endpoints that need no engine: /v1/models and /v1/models/{model}, /tokenize and /detokenize,
// /openapi.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/chat_fields.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {

// --- GET /v1/models and /v1/models/{model} ---

namespace {

void append_model(std::string& to, const ApiContext& context, const std::string& name) {
  to += R"({"id":)";
  append_json_string(to, name);
  to += R"(,"object":"model","created":)";
  append_json_number(to, context.created_s);
  to += R"(,"owned_by":"nvllm","root":)";
  append_json_string(to, context.model_root);
  to += R"(,"parent":null,"max_model_len":)";
  append_json_number(to, context.max_model_len);
  to += '}';
}

}  // namespace

std::string respond_models(const ApiContext& context, std::string_view /*body*/) {
  std::string out = R"({"object":"list","data":)";
  append_json_list(out, context.model_names, [&](std::string& to, const std::string& name) {
    append_model(to, context, name);
  });
  out += '}';
  return out;
}

std::string respond_model(const ApiContext& context, std::string_view name) {
  const std::string model(name);
  check_model(context, model);
  std::string out;
  append_model(out, context, model);
  return out;
}

// --- POST /tokenize and /detokenize: encode a text or conversation, decode ids ---

namespace {

using Json = nlohmann::json;

// Rejects fields that only affect generation.
void check_not_generating(const Json& body) {
  constexpr std::string_view kUseful[] = {"model", "add_special_tokens", "truncate_prompt_tokens",
                                          "request_id", "user"};
  for (const std::string& name : generation_field_names()) {
    if (std::ranges::find(kUseful, name) != std::end(kUseful)) continue;
    const auto value = body.find(name);
    if (value == body.end() || value->is_null()) continue;
    throw ApiError(400, name + ": is a field of endpoints that generate; leave it out", name);
  }
}

struct TokenizeFields : GenerationFields {
  bool return_token_strs = false;
};

constexpr Field<TokenizeFields> kTextFields[] = {
    {"prompt", store_nothing<TokenizeFields>},
    {"return_token_strs", store_value<&TokenizeFields::return_token_strs, TokenizeFields>},
};

struct DetokenizeFields : GenerationFields {
  std::vector<std::int32_t> tokens = {};
  bool has_tokens = false;
};

void store_tokens(const Json& value, DetokenizeFields& fields) {
  read_value(value, fields.tokens);
  fields.has_tokens = true;
}

constexpr Field<DetokenizeFields> kIdFields[] = {{"tokens", store_tokens}};

std::string tokens_body(const ApiContext& context, const std::vector<std::int32_t>& ids,
                        bool with_strings) {
  std::string out = R"({"count":)";
  append_json_number(out, static_cast<std::int64_t>(ids.size()));
  out += R"(,"max_model_len":)";
  append_json_number(out, context.max_model_len);
  out += R"(,"tokens":)";
  append_json_ids(out, ids);
  out += R"(,"token_strs":)";
  if (with_strings) {
    const tokenizer::Tokenizer& tokenizer = context.text->tokenizer();
    append_json_list(out, ids, [&](std::string& to, std::int32_t id) {
      append_json_string(to,
                         tokenizer.token_text(static_cast<tokenizer::TokenId>(id)).value_or(""));
    });
  } else {
    out += "null";
  }
  out += '}';
  return out;
}

// The conversation is read as for /v1/chat/completions, which does not support return_token_strs.
std::string tokenize_messages(const ApiContext& context, Json json, std::string_view body) {
  TokenizeFields own;
  if (const auto strings = json.find("return_token_strs"); strings != json.end()) {
    if (!strings->is_null()) {
      with_field("return_token_strs", [&] { read_value(*strings, own.return_token_strs); });
    }
    json.erase(strings);
  }
  if (json.contains("tools")) json["tool_choice"] = "none";  // there will be no calls
  const ChatFields fields = read_chat_fields(context, json);
  return tokens_body(context, chat_prompt_of(context, fields, body).ids, own.return_token_strs);
}

}  // namespace

std::string respond_tokenize(const ApiContext& context, std::string_view body) {
  const Json json = parse_body(body);
  check_not_generating(json);
  if (json.contains("messages") && json.contains("prompt")) {
    throw ApiError(400, "prompt and messages: pass one of them", "prompt");
  }
  if (json.contains("messages")) return tokenize_messages(context, json, body);
  const auto fields = read_fields<TokenizeFields>(context, json, kTextFields, {});
  const auto prompt = json.find("prompt");
  if (prompt == json.end() || !prompt->is_string()) {
    throw ApiError(400, "prompt: missing, or no string", "prompt");
  }
  std::vector<std::int32_t> ids =
      encode_text(context, "prompt", prompt->get_ref<const std::string&>(),
                  fields.add_special_tokens.value_or(true));
  truncate_prompt(context, fields, ids);
  return tokens_body(context, ids, fields.return_token_strs);
}

std::string respond_detokenize(const ApiContext& context, std::string_view body) {
  const Json json = parse_body(body);
  check_not_generating(json);
  const auto fields = read_fields<DetokenizeFields>(context, json, kIdFields, {});
  if (!fields.has_tokens) throw ApiError(400, "tokens: missing; pass a list of ids", "tokens");
  if (context.text == nullptr) {
    throw ApiError(400, "tokens: the model has no tokenizer", "tokens");
  }
  const tokenizer::Tokenizer& tokenizer = context.text->tokenizer();
  for (const std::int32_t id : fields.tokens) {
    if (static_cast<tokenizer::TokenId>(id) < tokenizer.end_id()) continue;
    throw ApiError(
        400, str("tokens: ", id, ": no token has this id; they are below ", tokenizer.end_id()),
        "tokens");
  }
  const std::vector<tokenizer::TokenId> ids(fields.tokens.begin(), fields.tokens.end());
  std::string out = R"({"prompt":)";
  append_json_string(out, tokenizer.decode(ids, false));
  out += '}';
  return out;
}

// --- GET /openapi.json: the description of all endpoints, openapi/openapi.json ---

std::string respond_openapi(const ApiContext& /*context*/, std::string_view /*body*/) {
  constexpr std::string_view kDescription =
#include "launcher/serve/api/openapi_text.inc"
      ;
  return std::string(kDescription);
}

}  // namespace nvllm::launcher
