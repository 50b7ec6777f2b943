#include "device/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.h"

namespace nvllm {
namespace {

constexpr unsigned kTextBytes = 96;
constexpr unsigned kMaxLinks = 18;  // of any GPU so far

// nvmlPciInfo_t
struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];  // "00000000:3B:00.0"
};

// nvmlGpuP2PCapsIndex_t
constexpr int kRead = 0, kNvlink = 2;

using Text = std::array<char, kTextBytes>;

}  // namespace

// Not every driver has all of them.
struct Nvml::Functions {
  std::unique_ptr<void, int (*)(void*)> library{nullptr, &dlclose};

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, std::uint64_t[3]) = nullptr;  // total, free, used
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*capability)(Device, int*, int*) = nullptr;
  int (*compute_mode)(Device, int*) = nullptr;
  int (*link_state)(Device, unsigned, int*) = nullptr;
  int (*peer_status)(Device, Device, int, int*) = nullptr;
  int (*ancestor)(Device, Device, int*) = nullptr;

  template <typename Function>
  void load(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(dlsym(library.get(), symbol));
  }

  void load_all() {
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

  bool has_what_is_needed() const {
    return init && shutdown && error_string && count && handle && uuid;
  }
};

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
}

std::unique_ptr<Nvml> Nvml::start(std::string* why) {
  auto functions = std::make_unique<Functions>();
  functions->library.reset(dlopen("libnvidia-ml.so.1", RTLD_NOW));
  if (functions->library == nullptr) {
    *why = str("no NVIDIA driver: ", dlerror());
    return nullptr;
  }
  functions->load_all();
  if (!functions->has_what_is_needed()) {
    *why = "libnvidia-ml.so.1 lacks functions that are needed; update the NVIDIA driver";
    return nullptr;
  }
  if (const int error = functions->init(); error != 0) {
    *why = str("no NVIDIA GPU: ", functions->error_string(error));
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

unsigned Nvml::count() const {
  unsigned count = 0;
  return functions_->count(&count) == 0 ? count : 0;
}

Nvml::Device Nvml::device(unsigned index) const {
  Device device = nullptr;
  return functions_->handle(index, &device) == 0 ? device : nullptr;
}

std::string Nvml::driver_version() const {
  Text text{};
  if (functions_->driver_version == nullptr) return "";
  return functions_->driver_version(text.data(), kTextBytes) == 0 ? text.data() : "";
}

std::optional<int> Nvml::cuda_version() const {
  int version = 0;
  if (functions_->cuda_version == nullptr || functions_->cuda_version(&version) != 0) return {};
  return version;
}

std::string Nvml::uuid(Device device) const {
  Text text{};
  return functions_->uuid(device, text.data(), kTextBytes) == 0 ? text.data() : "";
}

std::string Nvml::name(Device device) const {
  Text text{};
  if (functions_->name == nullptr) return "";
  return functions_->name(device, text.data(), kTextBytes) == 0 ? text.data() : "";
}

std::string Nvml::pci_address(Device device) const {
  PciInfo info{};
  if (functions_->pci == nullptr || functions_->pci(device, &info) != 0) return "";
  // NVML writes eight digits of domain, and capitals.
  std::string address(info.address);
  if (address.size() > 12) address.erase(0, address.size() - 12);
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

std::optional<int> Nvml::compute_mode(Device device) const {
  int mode = 0;
  if (functions_->compute_mode == nullptr || functions_->compute_mode(device, &mode) != 0)
    return {};
  return mode;
}

int Nvml::active_nvlinks(Device device) const {
  if (functions_->link_state == nullptr) return 0;
  int links = 0;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    int active = 0;
    if (functions_->link_state(device, link, &active) == 0 && active == 1) ++links;
  }
  return links;
}

std::optional<Nvml::Memory> Nvml::memory(Device device) const {
  std::uint64_t bytes[3] = {};
  if (functions_->memory == nullptr || functions_->memory(device, bytes) != 0) return {};
  return Memory{.total = bytes[0], .free = bytes[1]};
}

std::optional<Nvml::Capability> Nvml::capability(Device device) const {
  Capability capability{};
  if (functions_->capability == nullptr ||
      functions_->capability(device, &capability.major, &capability.minor) != 0) {
    return {};
  }
  return capability;
}

bool Nvml::can_read(Device from, Device to) const {
  int status = -1;
  return functions_->peer_status != nullptr &&
         functions_->peer_status(from, to, kRead, &status) == 0 && status == 0;
}

bool Nvml::joined_by_nvlink(Device a, Device b) const {
  int status = -1;
  return functions_->peer_status != nullptr &&
         functions_->peer_status(a, b, kNvlink, &status) == 0 && status == 0;
}

std::optional<int> Nvml::common_ancestor(Device a, Device b) const {
  int level = 0;
  if (functions_->ancestor == nullptr || functions_->ancestor(a, b, &level) != 0) return {};
  return level;
}

namespace {

std::string path_of(std::optional<int> level) {
  if (!level) return "a way that the driver does not tell";
  if (*level < 10) return "one board";
  if (*level < 20) return "one PCIe switch";
  if (*level < 30) return "several PCIe switches";
  if (*level < 40) return "a PCIe host bridge";
  if (*level < 50) return "PCIe within a NUMA node";
  return "PCIe across NUMA nodes";
}

GpuFacts facts_of(const Nvml& nvml, Nvml::Device device) {
  GpuFacts facts;
  if (device == nullptr) return facts;
  facts.name = nvml.name(device);
  facts.uuid = nvml.uuid(device);
  facts.pci = nvml.pci_address(device);
  if (const auto memory = nvml.memory(device)) {
    facts.total_bytes = memory->total;
    facts.free_bytes = memory->free;
  }
  if (const auto capability = nvml.capability(device)) {
    facts.capability = capability->major * 10 + capability->minor;
  }
  facts.prohibited = nvml.compute_mode(device) == Nvml::kProhibited;
  facts.nvlinks = nvml.active_nvlinks(device);
  return facts;
}

}  // namespace

GpuSurvey survey_gpus() {
  GpuSurvey survey;
  const std::unique_ptr<Nvml> nvml = Nvml::start(&survey.why_none);
  if (nvml == nullptr) return survey;
  survey.driver = nvml->driver_version();
  survey.cuda_version = nvml->cuda_version().value_or(0);
  std::vector<Nvml::Device> devices;
  for (unsigned index = 0; index < nvml->count(); ++index) {
    devices.push_back(nvml->device(index));
    survey.gpus.push_back(facts_of(*nvml, devices.back()));
  }
  for (std::size_t b = 1; b < devices.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (devices[a] == nullptr || devices[b] == nullptr) continue;
      survey.pairs.push_back({.first = static_cast<int>(a),
                              .second = static_cast<int>(b),
                              .nvlink = nvml->joined_by_nvlink(devices[a], devices[b]),
                              .path = path_of(nvml->common_ancestor(devices[a], devices[b])),
                              .peer_access = nvml->can_read(devices[a], devices[b]) &&
                                             nvml->can_read(devices[b], devices[a])});
    }
  }
  return survey;
}

}  // namespace nvllm
