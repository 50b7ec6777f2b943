// A checkpoint that contains NaN: no token is invented, and the error names the tensor.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/testing/broken_weights.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"

namespace nvllm::launcher {
namespace {

using testing::generate;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST_CASE("weights that are NaN give errors that name the tensor, once on standard error") {
  const TemporaryFolder folder;
  const std::string model = folder.path("model");
  testing::make_broken_model(model);
  const std::string where =
      std::string(testing::kBrokenTensor) + " holds NaN at " + testing::kBrokenPlace;
  for (const char* const ranks : {"--tp=1", "--tp=2"}) {
    std::vector<std::string> words = generate(
        "llama-tied", {ranks, "--prompt-ids=1,2", "--prompt-ids=3", "--n=2", "--max-tokens=3"});
    words.push_back("--model=" + model);
    Program program(words);
    CHECK(program.wait() == 1);
    const auto lines = json_lines(program.output());
    REQUIRE(lines.size() == 2);
    for (const auto& line : lines) {
      const std::string error = line.at("error");
      CHECK(error.find("no token can be sampled: all logits are NaN, since " + where) == 0);
    }
    const std::string errors = program.errors();
    CHECK(count(errors, "error no token can be sampled") == 1);
    CHECK(errors.find(where) != std::string::npos);
  }
}

}  // namespace
}  // namespace nvllm::launcher
