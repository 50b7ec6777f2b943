// Compares RoPE with the tables of Hugging Face transformers (tests/data/golden-layers).
#include "layers/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "testing/error_of.h"
#include "testing/golden.h"

namespace nvllm::layers {
namespace {

using Json = nlohmann::json;

const Json& layers_json() {
  static const Json json = [] {
    std::ifstream file("tests/data/golden-layers/layers.json");
    return read_json(file);
  }();
  return json;
}

const std::map<std::string, testing::GoldenTensor>& golden() {
  static const auto tensors = testing::read_golden("tests/data/golden-layers/layers.safetensors");
  return tensors;
}

RopeConfig config_of(const Json& entry) {
  const std::map<std::string, RopeConfig::Type> types = {{"default", RopeConfig::Type::standard},
                                                         {"linear", RopeConfig::Type::linear},
                                                         {"dynamic", RopeConfig::Type::dynamic},
                                                         {"yarn", RopeConfig::Type::yarn},
                                                         {"llama3", RopeConfig::Type::llama3}};
  const Json& rope = entry.at("rope_parameters");
  RopeConfig config;
  config.type = types.at(rope.at("rope_type"));
  config.theta = rope.at("rope_theta");
  config.max_position_embeddings = entry.at("max_position_embeddings");
  config.factor = rope.value("factor", config.factor);
  if (rope.contains("original_max_position_embeddings"))
    config.original_max_position_embeddings = rope["original_max_position_embeddings"];
  if (rope.contains("attention_factor")) config.attention_factor = rope["attention_factor"];
  if (rope.contains("mscale")) config.mscale = rope["mscale"];
  if (rope.contains("mscale_all_dim")) config.mscale_all_dim = rope["mscale_all_dim"];
  config.beta_fast = rope.value("beta_fast", config.beta_fast);
  config.beta_slow = rope.value("beta_slow", config.beta_slow);
  config.truncate = rope.value("truncate", config.truncate);
  config.low_freq_factor = rope.value("low_freq_factor", config.low_freq_factor);
  config.high_freq_factor = rope.value("high_freq_factor", config.high_freq_factor);
  return config;
}

// Golden dynamic tables are for one length each; ours is for factor * max_position_embeddings.
bool is_our_reading(const Json& entry) {
  const Json& rope = entry.at("rope_parameters");
  return rope.at("rope_type") != "dynamic" ||
         entry.at("seq_len").get<double>() ==
             rope.at("factor").get<double>() * entry.at("max_position_embeddings").get<double>();
}

TEST_CASE("rope: frequencies and scaling are those of transformers") {
  int cases = 0;
  for (const Json& entry : layers_json().at("rope").at("cases")) {
    if (!is_our_reading(entry)) continue;
    const std::string key = entry.at("key");
    CAPTURE(key);
    const auto& expected = golden().at(key + ".inv_freq");
    const RopeFrequencies got = rope_frequencies(config_of(entry), entry.at("head_dim"));
    CHECK(got.attention_scaling ==
          doctest::Approx(entry.at("attention_scaling").get<double>()).epsilon(1e-7));
    REQUIRE(got.inverse.size() == expected.values.size());
    for (std::size_t i = 0; i < got.inverse.size(); ++i) {
      // A few float32 roundings, one of them of an exponent of up to 14 (e^14 is 1.2e6).
      CHECK(std::fabs(got.inverse[i] - expected.values[i]) <= 16 * 0x1p-24f * got.inverse[i]);
    }
    ++cases;
  }
  CHECK(cases == 16);
}

TEST_CASE("rope: tables are those of transformers") {
  for (const Json& entry : layers_json().at("rope").at("cases")) {
    if (!is_our_reading(entry)) continue;
    const std::string key = entry.at("key");
    CAPTURE(key);
    const auto positions = entry.at("positions").get<std::vector<std::int64_t>>();
    const std::int64_t head_dim = entry.at("head_dim"), half = head_dim / 2;
    const auto& cosines = golden().at(key + ".cos").values;
    const auto& sines = golden().at(key + ".sin").values;
    const auto table = rope_table(config_of(entry), head_dim, positions.back() + 1);
    REQUIRE(table.size() == (positions.back() + 1) * static_cast<std::size_t>(head_dim));
    int wrong = 0;
    for (std::size_t p = 0; p < positions.size(); ++p) {
      // The expected values use float32 angles.
      const float tolerance = static_cast<float>(positions[p]) * 3e-7f + 1e-6f;
      const float* row = &table[positions[p] * head_dim];
      for (std::int64_t i = 0; i < half; ++i) {
        wrong += !(std::fabs(row[i] - cosines[p * half + i]) <= tolerance);
        wrong += !(std::fabs(row[half + i] - sines[p * half + i]) <= tolerance);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rope: every row of a table is the cosine and sine of its angle") {
  RopeConfig config;
  config.theta = 1e6;
  const auto rope = rope_frequencies(config, 64);
  const auto table = rope_table(config, 64, 3001);
  int wrong = 0;
  for (int position = 0; position <= 3000; ++position) {
    for (int i = 0; i < 32; ++i) {
      const double angle = position * static_cast<double>(rope.inverse[i]);
      wrong += !(std::fabs(table[position * 64 + i] - std::cos(angle)) <= 0x1p-24);
      wrong += !(std::fabs(table[position * 64 + 32 + i] - std::sin(angle)) <= 0x1p-24);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("rope: the length of a table does not change its rows") {
  RopeConfig config;
  const auto long_table = rope_table(config, 32, 700);
  const auto short_table = rope_table(config, 32, 300);
  CHECK(std::equal(short_table.begin(), short_table.end(), long_table.begin()));
  CHECK(rope_table(config, 32, 0).empty());
}

TEST_CASE("rope: without an original length, yarn and llama3 take the model's") {
  for (const auto type : {RopeConfig::Type::yarn, RopeConfig::Type::llama3}) {
    RopeConfig config;
    config.type = type;
    config.factor = 4;
    config.max_position_embeddings = 2048;
    const auto implied = rope_frequencies(config, 64);
    config.original_max_position_embeddings = 2048;
    CHECK(rope_frequencies(config, 64).inverse == implied.inverse);
    config.original_max_position_embeddings = 512;
    CHECK(rope_frequencies(config, 64).inverse != implied.inverse);
  }
}

std::string refusal(const RopeConfig& config, std::int64_t head_dim) {
  return testing::error_of([&] { rope_frequencies(config, head_dim); });
}

TEST_CASE(
    "rope: proportional has the highest frequencies of the whole head, and zeros behind them") {
  RopeConfig config;
  config.theta = 1e6;
  const std::vector<float> whole = rope_frequencies(config, 64).inverse;
  config.type = RopeConfig::Type::proportional;
  config.rotated = 0.25;
  const RopeFrequencies part = rope_frequencies(config, 64);
  REQUIRE(part.inverse.size() == 32);
  CHECK(part.attention_scaling == 1);
  for (std::size_t i = 0; i < 32; ++i) CHECK(part.inverse[i] == (i < 8 ? whole[i] : 0));
  const std::vector<float> table = rope_table(config, 64, 300);
  for (std::size_t i = 8; i < 32; ++i) {  // these do not rotate
    CHECK(table[299 * 64 + i] == 1);
    CHECK(table[299 * 64 + 32 + i] == 0);
  }
  config.rotated = 1;
  CHECK(rope_frequencies(config, 64).inverse == whole);
}

TEST_CASE("rope: values that make no sense are refused by name") {
  RopeConfig good;
  good.type = RopeConfig::Type::llama3;
  good.factor = 8;
  good.original_max_position_embeddings = 8192;
  CHECK(refusal(good, 64) == "");
  CHECK(refusal(good, 63).find("rope: head_dim is 63") == 0);
  RopeConfig bad = good;
  bad.theta = 0;
  CHECK(refusal(bad, 64).find("rope: theta is 0") == 0);
  bad = good;
  bad.factor = -1;
  CHECK(refusal(bad, 64).find("rope: factor is -1") == 0);
  bad = good;
  bad.factor = std::nan("");
  CHECK(refusal(bad, 64).find("rope: factor is nan") == 0);
  bad = good;
  bad.high_freq_factor = bad.low_freq_factor;
  CHECK(refusal(bad, 64).find("rope: low_freq_factor is 1") == 0);
  bad = good;
  bad.original_max_position_embeddings.reset();
  CHECK(refusal(bad, 64).find("rope: original_max_position_embeddings is 0") == 0);
  bad.type = RopeConfig::Type::proportional;
  bad.rotated = 1.5;
  CHECK(refusal(bad, 64).find("rope: rotated is 1.5") == 0);
}

}  // namespace
}  // namespace nvllm::layers
