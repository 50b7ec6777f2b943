#include "launcher/session/request_fields.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace nvllm::launcher {

using Json = nlohmann::json;

TEST_CASE("a sampling field is read by its name") {
  runtime::SamplingParams params;
  CHECK(read_sampling_field("temperature", 0.5, params));
  CHECK(params.temperature == 0.5);
  CHECK(read_sampling_field("max_tokens", 7, params));
  CHECK(params.max_tokens == 7);
  CHECK(read_sampling_field("max_tokens", nullptr, params));
  CHECK_FALSE(params.max_tokens.has_value());
}

TEST_CASE("a name that is no sampling field is left to others") {
  runtime::SamplingParams params;
  CHECK_FALSE(read_sampling_field("stop", "x", params));
  CHECK_FALSE(read_sampling_field("", nullptr, params));
}

TEST_CASE("every name that is listed exists") {
  for (const std::string& name : sampling_field_names()) {
    runtime::SamplingParams params;
    try {
      CHECK(read_sampling_field(name, "text", params));
    } catch (const Error& error) {
      CHECK(std::string(error.what()).starts_with(name + ": \"text\": "));
    }
  }
}

TEST_CASE("an error says the field, its value and what it must be") {
  runtime::SamplingParams params;
  CHECK_THROWS_WITH_AS(read_sampling_field("top_k", "all", params),
                       "top_k: \"all\": not a whole number", Error);
  CHECK_THROWS_WITH_AS(read_sampling_field("top_p", nullptr, params), "top_p: null; leave it out",
                       Error);
  CHECK_THROWS_WITH_AS(read_sampling_field("allowed_token_ids", Json::array(), params),
                       "allowed_token_ids: []: allows no token; leave it out", Error);
}

TEST_CASE("a whole number may be written as a float") {
  runtime::SamplingParams params;
  CHECK(read_sampling_field("top_k", 16.0, params));
  CHECK(params.top_k == 16);
  CHECK(read_sampling_field("top_k", -1.0, params));
  CHECK(params.top_k == -1);
  for (const double number : {0.5, 1e10, -1e300}) {
    CHECK_THROWS_AS(read_sampling_field("top_k", number, params), Error);
  }
}

TEST_CASE("texts are one, or a list of some, or none") {
  using Texts = std::vector<std::string>;
  CHECK(read_texts("a") == Texts{"a"});
  CHECK(read_texts(Json::array({"a", "b"})) == Texts{"a", "b"});
  CHECK(read_texts(nullptr) == Texts{});
  CHECK_THROWS_WITH_AS(read_texts(5), "5: neither a text nor a list of texts", Error);
  CHECK_THROWS_WITH_AS(read_texts(Json::array({5})), "5: no text", Error);
  CHECK_THROWS_WITH_AS(read_texts(""), "\"\": an empty text; leave it out", Error);
  CHECK_THROWS_WITH_AS(read_texts(Json::array({"a", ""})),
                       "[\"a\",\"\"]: an empty text; leave it out", Error);
}

TEST_CASE("a value that is shown is short") {
  CHECK(shown(Json(std::string(1000, 'x'))).size() < 50);
  CHECK(shown(Json("a\n\xC3\xA9")) == R"("a\n\u00e9")");
}

}  // namespace nvllm::launcher
