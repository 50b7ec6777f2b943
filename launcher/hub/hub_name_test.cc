#include "launcher/hub/hub_name.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kHub = "https://huggingface.co";

HubName parsed(const std::string& text) {
  const auto name = parse_hub_name(text, kHub);
  REQUIRE_MESSAGE(name, text);
  return *name;
}

std::string refusal(const std::string& text) {
  try {
    return parse_hub_name(text, kHub) ? "parsed" : "no name";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("a name has a repository, and may have a revision and a quantization") {
  CHECK(parsed("gpt2").repository == "gpt2");
  CHECK(parsed("Qwen/Qwen3-0.6B").repository == "Qwen/Qwen3-0.6B");
  CHECK(parsed("Qwen/Qwen3-0.6B").revision == "main");
  CHECK(parsed("a/b@v1.0").revision == "v1.0");
  CHECK(parsed("a/b@refs/pr/3").revision == "refs/pr/3");
  CHECK(parsed("a/b:q4_k_m").quantization == "q4_k_m");
  for (const char* const both : {"a/b:Q8_0@v2", "a/b@v2:Q8_0"}) {
    CHECK(parsed(both).text() == "a/b:Q8_0@v2");
  }
}

TEST_CASE("links to the hub's pages are names") {
  CHECK(parsed("https://huggingface.co/Qwen/Qwen3-0.6B").repository == "Qwen/Qwen3-0.6B");
  CHECK(parsed("https://hf.co/a/b/").repository == "a/b");
  CHECK(parsed("huggingface.co/a/b?x=1#readme").repository == "a/b");
  CHECK(parsed("https://huggingface.co/a/b/tree/v2").revision == "v2");
  CHECK(parsed("https://huggingface.co/a/b/tree/refs%2Fpr%2F1").revision == "refs/pr/1");
  const HubName file = parsed("https://huggingface.co/a/b/blob/main/sub/x-Q4_K_M.gguf");
  CHECK(file.file == "sub/x-Q4_K_M.gguf");
  CHECK(parsed("https://huggingface.co/a/b/blob/main/model.safetensors").file == "");
  CHECK(parse_hub_name("http://mirror:8080/a/b", "http://mirror:8080")->repository == "a/b");
}

TEST_CASE("paths are no names") {
  for (const char* const path :
       {"/a/b", "./a", "../a/b", "a/b/c", "a b/c", "x.gguf", "", "a/.b", "~/model"}) {
    CHECK(refusal(path) == "no name");
  }
}

TEST_CASE("what is nearly a name is refused with the fix") {
  CHECK(refusal("a/b@../../etc").find("is no revision; pass a branch") != std::string::npos);
  CHECK(refusal("a/b@").find("is no revision") != std::string::npos);
  CHECK(refusal("a/b:").find("is no quantization; pass ORG/NAME") != std::string::npos);
  CHECK(refusal("https://example.com/a/b").find("a link to another place") != std::string::npos);
  CHECK(refusal("https://huggingface.co/datasets/squad").find("leads to no model") !=
        std::string::npos);
  CHECK(refusal("https://huggingface.co/a/b/discussions/1").find("is not understood") !=
        std::string::npos);
  CHECK(refusal("https://huggingface.co/a/b/blob/main/../x.gguf").find("is no file") !=
        std::string::npos);
}

TEST_CASE("components of paths that come from elsewhere are checked") {
  CHECK(is_safe_path("Q4/model.gguf"));
  for (const char* const path : {"", "/etc", "a/../b", "..", "a//b", "a/", "a\\b", "a\nb", "."}) {
    CHECK_FALSE(is_safe_path(path));
  }
}

}  // namespace
}  // namespace nvllm::launcher
