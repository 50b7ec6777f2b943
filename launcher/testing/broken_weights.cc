#include "launcher/testing/broken_weights.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/generate_run.h"

namespace nvllm::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRow = 2, kColumn = 40;  // kBrokenPlace

void break_tensor(const std::string& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t size = 0;
  stream.read(reinterpret_cast<char*>(&size), sizeof size);
  if (!stream) fail(file, ": cannot be read and written");
  std::string header(size, ' ');
  stream.read(header.data(), static_cast<std::streamsize>(size));
  const nlohmann::json tensor = parse_json(header).at(kBrokenTensor);
  const std::int64_t element = kRow * tensor.at("shape")[1].get<std::int64_t>() + kColumn;
  const auto begin = tensor.at("data_offsets")[0].get<std::int64_t>();
  constexpr std::uint32_t kNan = 0x7fc00000;
  constexpr std::uint16_t kNanBf16 = kNan >> 16;
  const std::string type = tensor.at("dtype");
  const bool wide = type == "F32";
  if (!wide && type != "BF16") fail(file, ": neither F32 nor BF16");
  stream.seekp(8 + static_cast<std::int64_t>(size) + begin + element * (wide ? 4 : 2));
  if (wide) {
    stream.write(reinterpret_cast<const char*>(&kNan), sizeof kNan);
  } else {
    stream.write(reinterpret_cast<const char*>(&kNanBf16), sizeof kNanBf16);
  }
  if (!stream.flush()) fail(file, ": cannot be written");
}

}  // namespace

void make_broken_model(const std::string& path) {
  fs::copy(golden_model("llama-tied"), path, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  break_tensor(path + "/model.safetensors");
}

}  // namespace nvllm::testing
