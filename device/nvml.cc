#include "device/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <optional>

#include "base/text.h"

namespace nvllm {
namespace {

constexpr unsigned kMaxLinks = 18;  // maximum of all GPUs so far
constexpr int kProhibited = 2;      // the compute mode that prohibits all compute

using Device = void*;  // nullptr: it does not respond

// nvmlPciInfo_t
struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];  // "00000000:3B:00.0"
};

// nvmlGpuP2PCapsIndex_t
constexpr int kRead = 0, kNvlink = 2;

// NVML, initialized for the lifetime of this object. Its header belongs to the driver's development
// files, which a build machine may lack; the functions used here are part of its stable interface.
// Not every driver has all of them.
struct Nvml {
  std::unique_ptr<void, int (*)(void*)> library{dlopen("libnvidia-ml.so.1", RTLD_NOW), &dlclose};

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, std::uint64_t*) = nullptr;  // total, free, used
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*capability)(Device, int*, int*) = nullptr;
  int (*compute_mode)(Device, int*) = nullptr;
  int (*link_state)(Device, unsigned, int*) = nullptr;
  int (*peer_status)(Device, Device, int, int*) = nullptr;
  int (*ancestor)(Device, Device, int*) = nullptr;

  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (started) shutdown();
  }

  // Returns false, with the reason, if the library is missing or does not initialize.
  bool start(std::string* why);
  std::vector<Device> devices() const;

 private:
  template <typename Function>
  void load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(library.get(), symbol));
  }
  void load_all();

  bool started = false;
};

// Calls a function of the driver. Returns false if it is missing or fails.
template <typename Function, typename... Arguments>
bool ask(Function* function, Arguments... arguments) {
  return function != nullptr && function(arguments...) == 0;
}

// The text that a function of the driver returns; empty if it fails.
template <typename Function, typename... Arguments>
std::string ask_text(Function* function, Arguments... arguments) {
  std::array<char, 96> text{};
  const auto size = static_cast<unsigned>(text.size());
  return ask(function, arguments..., text.data(), size) ? text.data() : "";
}

void Nvml::load_all() {
  load(init, "nvmlInit_v2");
  load(shutdown, "nvmlShutdown");
  load(error_string, "nvmlErrorString");
  load(driver_version, "nvmlSystemGetDriverVersion");
  load(cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
  load(count, "nvmlDeviceGetCount_v2");
  load(handle, "nvmlDeviceGetHandleByIndex_v2");
  load(uuid, "nvmlDeviceGetUUID");
  load(name, "nvmlDeviceGetName");
  load(memory, "nvmlDeviceGetMemoryInfo");
  load(pci, "nvmlDeviceGetPciInfo_v3");
  load(capability, "nvmlDeviceGetCudaComputeCapability");
  load(compute_mode, "nvmlDeviceGetComputeMode");
  load(link_state, "nvmlDeviceGetNvLinkState");
  load(peer_status, "nvmlDeviceGetP2PStatus");
  load(ancestor, "nvmlDeviceGetTopologyCommonAncestor");
}

bool Nvml::start(std::string* why) {
  if (library == nullptr) {
    *why = str("no NVIDIA driver: ", dlerror());
    return false;
  }
  load_all();
  if (!(init && shutdown && error_string && count && handle && uuid)) {
    *why = "libnvidia-ml.so.1 lacks functions that are needed; update the NVIDIA driver";
    return false;
  }
  const int error = init();
  if (error != 0) *why = str("no NVIDIA GPU: ", error_string(error));
  started = error == 0;
  return started;
}

std::vector<Device> Nvml::devices() const {
  unsigned number = 0;
  if (!ask(count, &number)) return {};
  std::vector<Device> all(number);
  for (unsigned index = 0; index < number; ++index) {
    if (!ask(handle, index, &all[index])) all[index] = nullptr;
  }
  return all;
}

// "0000:3b:00.0", as Linux writes it.
std::string pci_address(const Nvml& nvml, Device device) {
  PciInfo info{};
  if (!ask(nvml.pci, device, &info)) return "";
  // NVML writes eight domain digits, in upper case.
  std::string address(info.address);
  if (address.size() > 12) address.erase(0, address.size() - 12);
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

int active_nvlinks(const Nvml& nvml, Device device) {
  int links = 0;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    int active = 0;
    if (ask(nvml.link_state, device, link, &active) && active == 1) ++links;
  }
  return links;
}

// Whether the path from one GPU to another supports this.
bool peers(const Nvml& nvml, Device from, Device to, int what) {
  int status = -1;
  return ask(nvml.peer_status, from, to, what, &status) && status == 0;
}

// The PCIe path between two GPUs.
std::string path_between(const Nvml& nvml, Device a, Device b) {
  int level = 0;
  if (!ask(nvml.ancestor, a, b, &level)) return "a way that the driver does not tell";
  if (level < 10) return "one board";
  if (level < 20) return "one PCIe switch";
  if (level < 30) return "several PCIe switches";
  if (level < 40) return "a PCIe host bridge";
  if (level < 50) return "PCIe within a NUMA node";
  return "PCIe across NUMA nodes";
}

GpuFacts facts_of(const Nvml& nvml, Device device) {
  GpuFacts facts;
  if (device == nullptr) return facts;
  facts.name = ask_text(nvml.name, device);
  facts.uuid = ask_text(nvml.uuid, device);
  facts.pci = pci_address(nvml, device);
  if (std::uint64_t bytes[3] = {}; ask(nvml.memory, device, bytes)) {
    facts.total_bytes = bytes[0];
    facts.free_bytes = bytes[1];
  }
  if (int major = 0, minor = 0; ask(nvml.capability, device, &major, &minor)) {
    facts.capability = major * 10 + minor;
  }
  int mode = 0;
  facts.prohibited = ask(nvml.compute_mode, device, &mode) && mode == kProhibited;
  facts.nvlinks = active_nvlinks(nvml, device);
  return facts;
}

}  // namespace

GpuSurvey survey_gpus() {
  GpuSurvey survey;
  Nvml nvml;
  if (!nvml.start(&survey.why_none)) return survey;
  survey.driver = ask_text(nvml.driver_version);
  if (!ask(nvml.cuda_version, &survey.cuda_version)) survey.cuda_version = 0;
  const std::vector<Device> devices = nvml.devices();
  for (const Device device : devices) survey.gpus.push_back(facts_of(nvml, device));
  for (std::size_t second = 1; second < devices.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const Device a = devices[first], b = devices[second];
      if (a == nullptr || b == nullptr) continue;
      survey.pairs.push_back({.first = static_cast<int>(first),
                              .second = static_cast<int>(second),
                              .nvlink = peers(nvml, a, b, kNvlink),
                              .path = path_between(nvml, a, b),
                              .peer_access = peers(nvml, a, b, kRead) && peers(nvml, b, a, kRead)});
    }
  }
  return survey;
}

std::vector<std::string> nvml_uuids(std::string* why_none) {
  std::vector<std::string> uuids;
  Nvml nvml;
  if (!nvml.start(why_none)) return uuids;
  for (const Device device : nvml.devices()) {
    uuids.push_back(device == nullptr ? "" : ask_text(nvml.uuid, device));
  }
  return uuids;
}

}  // namespace nvllm
