#include "launcher/net/percent.h"

#include <doctest/doctest.h>

#include <string>

namespace nvllm::launcher {
namespace {

TEST_CASE("percent: what has a meaning in URLs is escaped") {
  CHECK(percent_encoded_path("a b/c+d#.gguf") == "a%20b/c%2Bd%23.gguf");
}

TEST_CASE("percent: decoding is the other way round, and what is badly escaped stays") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(percent_decoded(percent_encoded_path(all)) == all);
  CHECK(percent_decoded("%2f%2F") == "//");
  for (const char* const bad : {"%", "%4", "%4g", "a%zz", "100%"})
    CHECK(percent_decoded(bad) == bad);
}

}  // namespace
}  // namespace nvllm::launcher
