#include "launcher/supervise/gpu_names.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace nvllm::launcher {
namespace {

std::optional<std::string> name_of_gpu(const std::string& value,
                                       const std::vector<std::string>& uuids) {
  for (std::size_t index = 0; index < uuids.size(); ++index) {
    if (value == std::to_string(index) || uuids[index].starts_with(value)) return uuids[index];
  }
  return value.starts_with("MIG-") ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<std::string> names_of_gpus(const std::vector<std::string>& values,
                                       const std::vector<std::string>& uuids) {
  std::vector<std::string> names;
  for (const std::string& value : values) {
    if (auto name = name_of_gpu(value, uuids)) names.push_back(std::move(*name));
  }
  return names;
}

}  // namespace nvllm::launcher
