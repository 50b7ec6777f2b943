// NVML: the driver's library that tells of GPUs without making a CUDA context. Its header comes
// with the driver's development files, which a build machine need not have; what is used here is
// part of its stable interface.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nvllm {

// Started as long as the object lives. Used by one thread.
class Nvml {
 public:
  using Device = void*;

  // nullptr, with the reason, if the library is missing or does not start.
  static std::unique_ptr<Nvml> start(std::string* why);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  unsigned count() const;
  Device device(unsigned index) const;  // nullptr: it does not answer

  // What the driver does not tell is empty or nullopt.
  std::string driver_version() const;            // "580.82.07"
  std::optional<int> cuda_version() const;       // 13000: the newest that the driver speaks
  std::string uuid(Device device) const;         // "GPU-3f..."
  std::string name(Device device) const;         // "NVIDIA H200"
  std::string pci_address(Device device) const;  // "0000:3b:00.0", as Linux writes it
  std::optional<int> compute_mode(
      Device device) const;  // kProhibited: no program may compute with it
  int active_nvlinks(Device device) const;

  struct Memory {
    std::uint64_t total, free;
  };
  std::optional<Memory> memory(Device device) const;

  struct Capability {
    int major, minor;
  };
  std::optional<Capability> capability(Device device) const;

  // Between two GPUs.
  bool can_read(Device from, Device to) const;  // either's memory, without the host's
  bool joined_by_nvlink(Device a, Device b) const;
  // What lies between them on PCIe: 0 one board, 10 one switch, 20 several, 30 a host bridge, 40 a
  // NUMA node, 50 the link between NUMA nodes.
  std::optional<int> common_ancestor(Device a, Device b) const;

  static constexpr int kProhibited = 2;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  std::unique_ptr<Functions> functions_;
};

// All that the driver tells of this machine's GPUs and of the paths between them.
struct GpuFacts {
  std::string name, uuid, pci;  // empty: it does not answer
  std::uint64_t total_bytes = 0, free_bytes = 0;
  int capability = 0;       // 90 for 9.0; 0: not told
  bool prohibited = false;  // its compute mode allows no program
  int nvlinks = 0;          // active ones
};

struct GpuPair {
  int first = 0, second = 0;
  bool nvlink = false;
  std::string path;          // what lies between them on PCIe: "one PCIe switch"
  bool peer_access = false;  // each reads the other's memory directly
};

struct GpuSurvey {
  std::string why_none;  // empty: the driver answers
  std::string driver;    // "580.82.07"
  int cuda_version = 0;  // 13000: the newest that the driver speaks; 0: not told
  std::vector<GpuFacts> gpus;
  std::vector<GpuPair> pairs;
};

GpuSurvey survey_gpus();

}  // namespace nvllm
