// RoPE scaling out of GGUF files: metadata, and Llama 3's factors.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "model/checkpoint/gguf_config.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

TEST_CASE("RoPE scaling in metadata") {
  GgufBuilder linear = metadata_of("qwen2");
  linear.text("qwen2.rope.scaling.type", "linear").f32("qwen2.rope.scaling.factor", 4);
  CHECK(config_of(add_embedding(linear))["rope_scaling"] ==
        parse_json(R"({"rope_type": "linear", "factor": 4.0})"));

  GgufBuilder of_old = metadata_of("llama");
  of_old.f32("llama.rope.scale_linear", 2);
  CHECK(config_of(add_embedding(of_old))["rope_scaling"] ==
        parse_json(R"({"rope_type": "linear", "factor": 2.0})"));

  GgufBuilder yarn = metadata_of("qwen3");
  yarn.text("qwen3.rope.scaling.type", "yarn").f32("qwen3.rope.scaling.factor", 4);
  yarn.u32("qwen3.rope.scaling.original_context_length", 32);
  yarn.f32("qwen3.rope.scaling.yarn_beta_fast", 24);
  CHECK(config_of(add_embedding(yarn))["rope_scaling"] ==
        parse_json(R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0,
                        "original_max_position_embeddings": 32})"));
  yarn.f32("qwen3.rope.scaling.attn_factor", 2);
  // 2 (1 + 0.1 ln 4)
  CHECK(config_of(yarn)["rope_scaling"]["attention_factor"].get<double>() ==
        doctest::Approx(2.2772588722).epsilon(1e-9));

  GgufBuilder none = metadata_of("qwen3");
  none.text("qwen3.rope.scaling.type", "none").f32("qwen3.rope.scaling.factor", 4);
  CHECK_FALSE(config_of(add_embedding(none)).contains("rope_scaling"));
}

// Frequencies of a head as Llama 3.1 divides them.
std::vector<float> divisors(const Llama3Scaling& scaling, double theta, int pairs) {
  std::vector<float> result;
  for (int i = 0; i < pairs; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, double(i) / pairs);
    result.push_back(static_cast<float>(llama3_divisor(scaling, wavelength)));
  }
  return result;
}

TEST_CASE("Llama 3's factors give back the scaling that they were made from") {
  for (const double factor : {8.0, 32.0}) {
    const auto found = find_llama3_scaling(divisors({.factor = factor}, 500000, 64), 500000);
    REQUIRE(found);
    CHECK(found->factor == factor);
    CHECK(found->low_freq_factor == 1);
    CHECK(found->high_freq_factor == 4);
    CHECK(found->original_max_position_embeddings == 8192);
  }
}

TEST_CASE("other parameters of the same kind give the same divisors") {
  // From many blended frequencies to none.
  for (const int pairs : {64, 32, 16, 8, 4, 2, 1}) {
    for (const double theta : {10000.0, 500000.0}) {
      for (const Llama3Scaling& scaling :
           {Llama3Scaling{4, 1, 2, 64}, Llama3Scaling{8, 0.5, 16, 256},
            Llama3Scaling{3, 2, 3, 1000}, Llama3Scaling{1, 1, 4, 64}}) {
        const std::vector<float> expected = divisors(scaling, theta, pairs);
        const auto found = find_llama3_scaling(expected, theta);
        CAPTURE(pairs);
        CAPTURE(theta);
        CAPTURE(scaling.factor);
        REQUIRE(found);
        const std::vector<float> again = divisors(*found, theta, pairs);
        for (int i = 0; i < pairs; ++i)
          CHECK(again[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("factors of another kind are none of Llama 3's") {
  std::vector<float> factors = divisors({.factor = 8}, 500000, 64);
  factors[35] *= 1.001f;
  CHECK_FALSE(find_llama3_scaling(factors, 500000));
  CHECK_FALSE(find_llama3_scaling(divisors({.factor = 8}, 500000, 64), 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{8, 1}, 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{1, 0}, 10000));
  CHECK_FALSE(
      find_llama3_scaling(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}, 10000));
  CHECK_FALSE(find_llama3_scaling({}, 10000));
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_CASE("rope_freqs.weight becomes a llama3 scaling, and no tensor") {
  GgufBuilder b = metadata_of("llama");
  b.u32("llama.attention.key_length", 128).u32("llama.attention.value_length", 128);
  b.f32("llama.rope.freq_base", 500000);
  b.tensor("rope_freqs.weight", GgufType::f32, {64}, floats(divisors({.factor = 32}, 500000, 64)));
  const Checkpoint checkpoint = open(add_embedding(b));
  CHECK(checkpoint.tensors().size() == 1);
  CHECK(parse_json(checkpoint.config_json())["rope_scaling"] == parse_json(R"({
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192})"));
}

TEST_CASE("rope_freqs.weight that cannot be used") {
  const auto error_with = [](const std::vector<float>& values) {
    GgufBuilder b = metadata_of("llama");
    b.tensor("rope_freqs.weight", GgufType::f32, {values.size()}, floats(values));
    return error_of_file(add_embedding(b));
  };
  CHECK(error_with({1, 2}) == "no error");
  CHECK(error_with({2, 1}) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected the factors of Llama 3's RoPE scaling, "
        "found others");
  CHECK(error_with({1, 2, 3}) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected shape [2], found [3]");
  GgufBuilder both = metadata_of("llama");
  both.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  both.tensor("rope_freqs.weight", GgufType::f32, {2}, floats({1, 2}));
  CHECK(error_of_file(add_embedding(both)) ==
        "DIR/model.gguf: both tensor rope_freqs.weight and RoPE scaling linear; expected one of "
        "them");
  GgufBuilder half = metadata_of("llama");
  half.tensor("rope_freqs.weight", GgufType::f16, {2}, "1234");
  CHECK(error_of_file(add_embedding(half)) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected F32 of one dimension, found F16 [2]");
}

}  // namespace
}  // namespace nvllm::model
