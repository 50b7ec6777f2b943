#include "device/gpu_list.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "base/error.h"

namespace nvllm {
namespace {

// The few functions of NVML that are needed. Its header comes with the driver's development files,
// which a build machine need not have; these signatures are part of its stable interface.
class Nvml {
 public:
  // Empty with the reason if the library is missing or does not start.
  static std::vector<std::string> uuids(std::string* why) {
    const std::unique_ptr<void, int (*)(void*)> library(dlopen("libnvidia-ml.so.1", RTLD_NOW),
                                                        &dlclose);
    if (library == nullptr) {
      *why = str("no NVIDIA driver: ", dlerror());
      return {};
    }
    const Nvml nvml(library.get());
    if (!nvml.complete()) {
      *why = "libnvidia-ml.so.1 lacks functions that are needed; update the NVIDIA driver";
      return {};
    }
    if (const int error = nvml.init_(); error != 0) {
      *why = str("no NVIDIA GPU: ", nvml.error_string_(error));
      return {};
    }
    std::vector<std::string> found = nvml.list_uuids();
    nvml.shutdown_();
    return found;
  }

 private:
  using Device = void*;
  static constexpr unsigned kUuidBytes = 96;

  explicit Nvml(void* library) {
    load(init_, library, "nvmlInit_v2");
    load(shutdown_, library, "nvmlShutdown");
    load(error_string_, library, "nvmlErrorString");
    load(count_, library, "nvmlDeviceGetCount_v2");
    load(handle_, library, "nvmlDeviceGetHandleByIndex_v2");
    load(uuid_, library, "nvmlDeviceGetUUID");
  }

  template <typename Function>
  static void load(Function& function, void* library, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }

  bool complete() const {
    return init_ && shutdown_ && error_string_ && count_ && handle_ && uuid_;
  }

  std::vector<std::string> list_uuids() const {
    std::vector<std::string> uuids;
    unsigned count = 0;
    if (count_(&count) != 0) return uuids;
    for (unsigned index = 0; index < count; ++index) {
      Device device = nullptr;
      char uuid[kUuidBytes] = "";
      // A GPU that does not answer keeps its place, without a name.
      if (handle_(index, &device) == 0) uuid_(device, uuid, kUuidBytes);
      uuids.emplace_back(uuid);
    }
    return uuids;
  }

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
};

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
  return Nvml::uuids(why_none);
}

}  // namespace nvllm
