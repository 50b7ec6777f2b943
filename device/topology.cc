#include "device/topology.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "device/nvml.h"

namespace nvllm {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

// The whole text as a number; -1 if it is not one.
int parse_index(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

bool starts_with_ignoring_case(std::string_view text, std::string_view start) {
  return text.size() >= start.size() &&
         std::equal(start.begin(), start.end(), text.begin(), [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

// The GPU that an entry of CUDA_VISIBLE_DEVICES selects; -1: none, or more than one.
int find_gpu(std::string_view entry, const std::vector<std::string>& uuids) {
  if (!starts_with_ignoring_case(entry, "GPU-")) {
    const int index = parse_index(entry);
    return index < static_cast<int>(uuids.size()) ? index : -1;
  }
  int found = -1;
  for (std::size_t index = 0; index < uuids.size(); ++index) {
    if (!starts_with_ignoring_case(uuids[index], entry)) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(index);
  }
  return found;
}

std::vector<std::string> none(std::string* why_none, const std::string& why) {
  if (why_none != nullptr) *why_none = why;
  return {};
}

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

// CUDA and NVML write "00000000:3B:00.0" or "0000:3B:00.0", sysfs "0000:3b:00.0".
std::string folder_of_pci_device(std::string bus_id, const std::string& root) {
  for (char& c : bus_id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const std::size_t colon = bus_id.find(':'); colon != std::string::npos && colon > 4) {
    bus_id.erase(0, colon - 4);
  }
  return root + "/sys/bus/pci/devices/" + bus_id;
}

// A set of cores of any size; the fixed cpu_set_t ends at 1,024.
class CoreSet {
 public:
  static constexpr int kCores = 16384;

  CoreSet() : set_(CPU_ALLOC(kCores)) { CPU_ZERO_S(bytes(), set_); }
  ~CoreSet() { CPU_FREE(set_); }
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  static std::size_t bytes() { return CPU_ALLOC_SIZE(kCores); }
  cpu_set_t* get() { return set_; }
  void add(int core) {
    NVLLM_CHECK(core >= 0 && core < kCores, "core ", core);
    CPU_SET_S(core, bytes(), set_);
  }
  bool has(int core) const { return CPU_ISSET_S(core, bytes(), set_); }

 private:
  cpu_set_t* set_;
};

// The number of nodes that kernels are built for. The system calls take one more than the number of
// bits.
constexpr std::size_t kNodes = 1024;
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
using Nodes = std::array<unsigned long, kNodes / kWordBits>;

bool set_policy(int mode, const Nodes& nodes) {
  return ::syscall(SYS_set_mempolicy, mode, nodes.data(), kNodes + 1) == 0;
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
  std::sort(folders.begin(), folders.end());  // by bus address, in NVML's order

  std::vector<std::string> uuids;
  for (const std::filesystem::path& folder : folders) {
    auto fields = read_fields(folder / "information");
    const std::string uuid = fields["GPU UUID"];
    if (uuid.empty() || uuid.find('?') != std::string::npos) return std::nullopt;
    if (fields["GPU Excluded"] == "Yes") continue;
    // In a container only the files of its own GPUs exist.
    const std::string device = str(dev, "/nvidia", fields["Device Minor"]);
    if (access(device.c_str(), R_OK | W_OK) == 0) uuids.push_back(uuid);
  }
  return uuids;
}

std::vector<std::string> gpu_uuids(std::string* why_none) {
  const auto listed = gpu_uuids_of_driver();
  if (listed && !listed->empty()) return *listed;
  return nvml_uuids(why_none);
}

std::vector<std::string> visible_gpus(std::string* why_none) {
  std::string why;
  const std::vector<std::string> uuids = gpu_uuids(&why);
  if (uuids.empty()) return none(why_none, why.empty() ? "the NVIDIA driver has no GPU" : why);
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  return select_gpus(variable ? std::optional<std::string_view>(variable) : std::nullopt, uuids,
                     why_none);
}

std::vector<std::string> select_gpus(std::optional<std::string_view> visible_devices,
                                     const std::vector<std::string>& uuids, std::string* why_none) {
  std::vector<std::string> selected;
  if (!visible_devices) {
    for (std::size_t index = 0; index < uuids.size(); ++index) {
      selected.push_back(std::to_string(index));
    }
    if (selected.empty()) return none(why_none, "the NVIDIA driver has no GPU");
    return selected;
  }

  std::vector<int> taken;
  std::string_view rest = *visible_devices;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    if (!starts_with_ignoring_case(entry, "MIG-")) {
      const int gpu = find_gpu(entry, uuids);
      if (gpu < 0) break;
      if (std::find(taken.begin(), taken.end(), gpu) != taken.end()) {
        return none(why_none, str("CUDA_VISIBLE_DEVICES=", *visible_devices,
                                  " names a GPU twice; CUDA then uses none"));
      }
      taken.push_back(gpu);
    }
    selected.emplace_back(entry);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (selected.empty()) {
    return none(why_none, str("CUDA_VISIBLE_DEVICES=", *visible_devices, " selects none of ",
                              uuids.size(), uuids.size() == 1 ? " GPU" : " GPUs"));
  }
  return selected;
}

std::vector<std::string> names_of_gpus(const std::vector<std::string>& selected,
                                       const std::vector<std::string>& uuids) {
  std::vector<std::string> names;
  for (const std::string& entry : selected) {
    const int gpu = find_gpu(entry, uuids);
    if (gpu >= 0) {
      names.push_back(uuids[static_cast<std::size_t>(gpu)]);
    } else if (starts_with_ignoring_case(entry, "MIG-")) {
      names.push_back(entry);
    }
  }
  return names;
}

std::vector<int> allowed_cores() {
  CoreSet set;
  if (sched_getaffinity(0, CoreSet::bytes(), set.get()) != 0)
    fail_errno("asking for the allowed cores");
  std::vector<int> cores;
  for (int core = 0; core < CoreSet::kCores; ++core) {
    if (set.has(core)) cores.push_back(core);
  }
  return cores;
}

void run_on_cores(const std::vector<int>& cores) {
  if (cores.empty()) return;
  CoreSet set;
  for (const int core : cores) set.add(core);
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), &closedir);
  if (threads == nullptr) fail_errno("/proc/self/task");
  while (const dirent* thread = readdir(threads.get())) {
    const int id = parse_index(thread->d_name);
    if (id <= 0) continue;
    // A thread that has ended in the meantime is ignored.
    if (sched_setaffinity(id, CoreSet::bytes(), set.get()) != 0 && errno != ESRCH) {
      fail_errno("restricting this process to ", cores.size(), " cores from core ", cores.front());
    }
  }
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int rank, int ranks) {
  NVLLM_CHECK(0 <= rank && rank < ranks, "rank ", rank, " of ", ranks);
  const auto count = static_cast<int>(cores.size());
  if (count == 0) return {};
  if (count < ranks) return {cores[rank % count]};
  const auto begin = static_cast<long>(count) * rank / ranks;
  const auto end = static_cast<long>(count) * (rank + 1) / ranks;
  return {cores.begin() + begin, cores.begin() + end};
}

std::vector<int> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const int first = parse_index(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : parse_index(part.substr(dash + 1));
    if (first < 0 || last < first || last >= CoreSet::kCores) {
      fail("'", text, "' is not a list of cores such as 0-3,8");
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return cores;
}

std::vector<int> cores_near_pci_device(const std::string& bus_id) {
  std::ifstream file(folder_of_pci_device(bus_id, "") + "/local_cpulist");
  std::string list;
  if (bus_id.find('/') != std::string::npos || !std::getline(file, list)) return {};
  const std::vector<int> allowed = allowed_cores();
  std::vector<int> near;
  for (const int core : parse_core_list(list)) {
    if (std::binary_search(allowed.begin(), allowed.end(), core)) near.push_back(core);
  }
  return near;
}

int node_of_pci_device(const std::string& bus_id, const std::string& root) {
  std::ifstream file(folder_of_pci_device(bus_id, root) + "/numa_node");
  int node = kNoNode;
  return file >> node && node >= 0 && node < static_cast<int>(kNodes) ? node : kNoNode;
}

bool prefer_memory_of(int node) {
  if (node < 0 || node >= static_cast<int>(kNodes)) return false;
  const auto bit = static_cast<std::size_t>(node);
  Nodes nodes{};
  nodes[bit / kWordBits] = 1ul << bit % kWordBits;
  return set_policy(MPOL_PREFERRED, nodes);
}

std::string why_no_memory_policy() {
  int mode = 0;
  Nodes nodes{};
  const bool known = ::syscall(SYS_get_mempolicy, &mode, nodes.data(), kNodes + 1, nullptr, 0) == 0;
  return known && set_policy(mode, nodes) ? "" : errno_text(errno);
}

}  // namespace nvllm
