#include "device/gpu_list.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "base/error.h"
#include "device/nvml.h"

namespace nvllm {
namespace {

// "Name: value" lines.
std::map<std::string, std::string> read_fields(const std::filesystem::path& path) {
  std::map<std::string, std::string> fields;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    fields[line.substr(0, colon)] = value == std::string::npos ? "" : line.substr(value);
  }
  return fields;
}

}  // namespace

std::optional<std::vector<std::string>> gpu_uuids_of_driver(const std::string& proc,
                                                            const std::string& dev) {
  std::error_code error;
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(proc, error)) {
    folders.push_back(entry.path());
  }
  if (error || folders.empty()) return std::nullopt;
  std::sort(folders.begin(), folders.end());  // by bus address, as NVML counts

  std::vector<std::string> uuids;
  for (const std::filesystem::path& folder : folders) {
    auto fields = read_fields(folder / "information");
    const std::string uuid = fields["GPU UUID"];
    if (uuid.empty() || uuid.find('?') != std::string::npos) return std::nullopt;
    if (fields["GPU Excluded"] == "Yes") continue;
    // A container has the files of its own GPUs only.
    const std::string device = str(dev, "/nvidia", fields["Device Minor"]);
    if (access(device.c_str(), R_OK | W_OK) == 0) uuids.push_back(uuid);
  }
  return uuids;
}

std::vector<std::string> gpu_uuids(std::string* why_none) {
  const auto listed = gpu_uuids_of_driver();
  if (listed && !listed->empty()) return *listed;
  const std::unique_ptr<Nvml> nvml = Nvml::start(why_none);
  std::vector<std::string> uuids;
  if (nvml == nullptr) return uuids;
  for (unsigned index = 0; index < nvml->count(); ++index) {
    // A GPU that does not answer keeps its place, without a name.
    const Nvml::Device device = nvml->device(index);
    uuids.push_back(device == nullptr ? "" : nvml->uuid(device));
  }
  return uuids;
}

}  // namespace nvllm
