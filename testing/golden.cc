#include "testing/golden.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "device/dtype.h"

namespace nvllm::testing {
namespace {

template <typename T>
std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = to_float(value);
  }
  return values;
}

}  // namespace

std::map<std::string, GoldenTensor> read_golden(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, ": cannot be opened; is it among the test's data?");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) fail(path, ": is no safetensors file");
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const std::size_t data = sizeof(header_bytes) + header_bytes;
  const auto header = parse_json(bytes.substr(sizeof(header_bytes), header_bytes));

  std::map<std::string, GoldenTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto type = entry.at("dtype").get<std::string>();
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
    const std::string part = bytes.substr(data + begin, end - begin);
    if (type != "F32" && type != "BF16") fail(path, ": ", name, " is ", type);
    tensors[name] = {entry.at("shape").get<std::vector<std::int64_t>>(),
                     type == "F32" ? floats<float>(part) : floats<Bf16>(part)};
  }
  return tensors;
}

}  // namespace nvllm::testing
