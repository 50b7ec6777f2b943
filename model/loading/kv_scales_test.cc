// Tests the scales of KV caches in checkpoints: both names, one number or one for each head, and
// errors that name the tensor.
#include "model/loading/kv_scales.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/safetensors_builder.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {
namespace {

ModelConfig config() {
  ModelConfig config;
  config.layers = 2;
  config.kv_heads = 3;
  return config;
}

// One number for all heads: 1.5 and 2 in layer 0, 2.5 and 3 in layer 1.
SafetensorsBuilder usual() {
  SafetensorsBuilder files;
  files.set("model.layers.0.self_attn.k_scale", "F32", {}, std::vector<float>{1.5});
  files.set("model.layers.0.self_attn.v_scale", "F32", {1}, std::vector<float>{2});
  files.set("model.layers.1.self_attn.k_proj.k_scale", "F32", {1}, std::vector<float>{2.5});
  files.set("model.layers.1.self_attn.v_proj.v_scale", "F32", {}, std::vector<float>{3});
  return files;
}

std::vector<float> read(const SafetensorsBuilder& files, layers::Range heads) {
  const TestFolder folder;
  files.write(folder);
  return read_kv_scales(open_checkpoint(folder.path()), config(),
                        [&](std::int64_t) { return heads; });
}

std::string error_of(const SafetensorsBuilder& files) {
  const TestFolder folder;
  files.write(folder);
  try {
    read_kv_scales(open_checkpoint(folder.path()), config(), [](std::int64_t) {
      return layers::Range{0, 3};
    });
  } catch (const Error& error) {
    std::string text = error.what();
    if (const auto at = text.find(folder.path()); at != std::string::npos)
      text.replace(at, folder.path().size(), "DIR");
    return text;
  }
  return "";
}

TEST_CASE("scales of both names, of this rank's KV heads") {
  CHECK(read(usual(), {1, 3}) == std::vector<float>{1.5, 1.5, 2, 2, 2.5, 2.5, 3, 3});
  SafetensorsBuilder files = usual();
  files.set("model.layers.1.self_attn.k_proj.k_scale", "F32", {3, 1, 1},
            std::vector<float>{4, 5, 6});
  CHECK(read(files, {1, 3}) == std::vector<float>{1.5, 1.5, 2, 2, 5, 6, 3, 3});
  CHECK(read(files, {0, 0}).empty());
}

TEST_CASE("a checkpoint without scales has none") {
  SafetensorsBuilder files;
  files.set("a.weight", "F32", {1}, std::vector<float>{1});
  CHECK(read(files, {0, 3}).empty());
}

TEST_CASE("a scale that is missing, of another shape or no number above 0 is named") {
  SafetensorsBuilder files = usual();
  files.erase("model.layers.1.self_attn.v_proj.v_scale");
  CHECK(error_of(files).find("expected a tensor model.layers.1.self_attn.v_scale, as there is "
                             "model.layers.0.self_attn.k_scale; found none") != std::string::npos);
  files = usual();
  files.set("model.layers.0.self_attn.v_scale", "F32", {2}, std::vector<float>{1, 1});
  CHECK(error_of(files).find("tensor model.layers.0.self_attn.v_scale: expected one number, or one "
                             "for each of 3 KV heads, in F32, F16 or BF16, found F32 [2]") !=
        std::string::npos);
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e-45f}) {
    files = usual();
    files.set("model.layers.0.self_attn.k_scale", "F32", {}, std::vector<float>{wrong});
    CAPTURE(wrong);
    CHECK(error_of(files).find("tensor model.layers.0.self_attn.k_scale: is ") !=
          std::string::npos);
    CHECK(error_of(files).ends_with("; a scale must be a number above 0"));
  }
}

}  // namespace
}  // namespace nvllm::model
