// A checkpoint with a number that is none: no token is made up, and the tensor is named.
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;
using testing::generate;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

constexpr const char* kTensor = "model.layers.1.mlp.down_proj.weight";

// Writes these bits of a float at a place of the tensor.
void break_tensor(const std::string& file, std::int64_t row, std::int64_t column,
                  std::uint32_t bits) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(stream);
  std::uint64_t size = 0;
  stream.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  stream.read(header.data(), static_cast<std::streamsize>(size));
  const nlohmann::json tensor = parse_json(header).at(kTensor);
  const bool wide = tensor.at("dtype") == "F32";
  const auto element = row * tensor.at("shape")[1].get<std::int64_t>() + column;
  const auto begin = tensor.at("data_offsets")[0].get<std::int64_t>();
  stream.seekp(8 + static_cast<std::int64_t>(size) + begin + element * (wide ? 4 : 2));
  const auto half = static_cast<std::uint16_t>(bits >> 16);  // of bfloat16
  if (wide) {
    stream.write(reinterpret_cast<const char*>(&bits), 4);
  } else {
    REQUIRE(tensor.at("dtype") == "BF16");
    stream.write(reinterpret_cast<const char*>(&half), 2);
  }
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST_CASE("weights that are NaN give errors that name the tensor, once on standard error") {
  const TemporaryFolder folder;
  const std::string model = folder.path("model");
  fs::copy(testing::golden_model("llama-tied"), model, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(model)) {
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  break_tensor(model + "/model.safetensors", 2, 40, 0x7fc00000);
  const std::string where = std::string(kTensor) + " holds NaN at [2, 40]";
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
