#include "device/gpu_survey.h"

#include <memory>

#include "device/nvml.h"

namespace nvllm {
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
