// /openapi.json describes exactly the fields that the endpoints accept.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"
#include "launcher/serve/api/generation_fields.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;

json description() {
  return parse_json(respond_openapi({}, ""));
}

// Names of a schema's properties that are not among `accepted`, and those that it lacks.
std::string differences(const json& schema, std::vector<std::string> accepted) {
  std::string found;
  for (const auto& [name, value] : schema["properties"].items()) {
    const auto at = std::ranges::find(accepted, name);
    if (at == accepted.end()) {
      found += " +" + name;
    } else {
      accepted.erase(at);
    }
  }
  for (const std::string& name : accepted) found += " -" + name;
  return found;
}

TEST_CASE("openapi: requests have the fields that the code accepts") {
  const json schemas = description()["components"]["schemas"];
  CHECK(differences(schemas["CompletionRequest"], completion_field_names()) == "");
  CHECK(differences(schemas["ChatCompletionRequest"], chat_field_names()) == "");
  CHECK(differences(schemas["MessageRequest"], message_field_names()) == "");
  CHECK(differences(schemas["CountTokensRequest"], message_field_names()) == "");
  CHECK(differences(schemas["ResponseRequest"], response_field_names()) == "");
}

// Fields of endpoints that do not need the engine have no table to compare with.
std::string refusal(const ApiContext& context, Respond respond, const json& body) {
  return testing::error_of([&] { (void)respond(context, json_text(body)); });
}

TEST_CASE("openapi: /tokenize and /detokenize accept their fields") {
  ApiFixture fixture;
  const json schemas = description()["components"]["schemas"];
  const json messages = {{{"role", "user"}, {"content", "who"}}};
  const std::vector<std::tuple<Respond, std::string, json>> cases = {
      {respond_tokenize, "TokenizeTextRequest", {{"prompt", "who"}}},
      {respond_tokenize, "TokenizeChatRequest", {{"messages", messages}}},
      {respond_detokenize, "DetokenizeRequest", {{"tokens", {1, 2}}}}};
  for (const auto& [respond, schema, body] : cases) {
    CHECK(refusal(fixture.context(), respond, body) == "");
    for (const auto& property : schemas[schema]["properties"].items()) {
      const std::string& name = property.key();
      if (body.contains(name)) continue;
      json with = body;
      with[name] = nullptr;
      CAPTURE(name);
      CHECK(refusal(fixture.context(), respond, with) == "");
    }
  }
}

// All values of "$ref".
void find_references(const json& part, std::vector<std::string>& found) {
  if (part.is_object() && part.contains("$ref")) found.push_back(part["$ref"]);
  if (!part.is_structured()) return;
  for (const json& item : part) find_references(item, found);
}

TEST_CASE("openapi: every reference has its schema, every schema a reference") {
  const json all = description();
  const std::string prefix = "#/components/schemas/";
  std::vector<std::string> references;
  find_references(all, references);
  for (const std::string& reference : references) {
    CAPTURE(reference);
    REQUIRE(reference.starts_with(prefix));
    CHECK(all["components"]["schemas"].contains(reference.substr(prefix.size())));
  }
  for (const auto& schema : all["components"]["schemas"].items()) {
    const std::string& name = schema.key();
    CAPTURE(name);
    CHECK(std::ranges::find(references, prefix + name) != references.end());
  }
}

}  // namespace
}  // namespace nvllm::launcher
