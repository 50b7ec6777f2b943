#include "launcher/doctor/machine.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "device/host_memory.h"
#include "device/topology.h"
#include "ipc/group.h"
#include "kernels/common/cpu/instruction_set.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

// The first line; empty if there is none.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of the first line "name : value" with that name.
std::string field(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int number_or(std::string_view text, int otherwise) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : otherwise;
}

// "[madvise]" in "always [madvise] never".
std::string chosen_of(const std::string& line) {
  const std::size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end < begin ? "" : line.substr(begin + 1, end - begin - 1);
}

std::uint64_t memory_of_node(const fs::path& folder) {
  // "Node 0 MemTotal:       65800000 kB"
  std::ifstream file(folder / "meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("MemTotal:");
    if (at == std::string::npos) continue;
    std::uint64_t kibibytes = 0;
    std::istringstream(line.substr(at + 9)) >> kibibytes;
    return kibibytes << 10;
  }
  return 0;
}

std::vector<NumaNode> numa_nodes(const fs::path& folder, const std::vector<int>& allowed) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const int node = name.starts_with("node") ? number_or(name.substr(4), -1) : -1;
    if (node < 0) continue;
    NumaNode found{.node = node, .cores = {}, .bytes = memory_of_node(at->path())};
    try {
      for (const int core : parse_core_list(first_line(at->path() / "cpulist"))) {
        if (std::binary_search(allowed.begin(), allowed.end(), core)) found.cores.push_back(core);
      }
    } catch (const Error&) {
      // A node with memory only has no cores.
    }
    nodes.push_back(std::move(found));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.node < b.node; });
  return nodes;
}

SharedMemoryFacts shared_memory(int max_ranks) {
  constexpr const char* kFolder = "/dev/shm";
  SharedMemoryFacts facts{.needed_one = ipc::Group::bytes_needed({.size = 1}),
                          .needed_all = ipc::Group::bytes_needed({.size = max_ranks})};
  struct statvfs system {};
  if (::statvfs(kFolder, &system) != 0 || ::access(kFolder, W_OK | X_OK) != 0) {
    facts.error = errno_text(errno);
    return facts;
  }
  facts.total_bytes = system.f_blocks * system.f_frsize;
  facts.free_bytes = system.f_bavail * system.f_frsize;
  return facts;
}

std::optional<std::uint64_t> lockable_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return limit.rlim_cur;
}

DefaultModelFacts default_model_facts(const Environment& environment) {
  DefaultModelFacts facts;
  try {
    facts.path = default_model_path(environment);
  } catch (const Error&) {
    return facts;
  }
  std::error_code error;
  facts.there = fs::exists(facts.path, error);
  facts.fetched = environment("NVLLM_FETCH_MODEL").has_value();
  return facts;
}

bool runs_baseline() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

void survey_gpu_side(Machine& machine, const fs::path& root) {
  machine.cuda_built = NVLLM_CUDA_VERSION;
  machine.gpus = survey_gpus();
  machine.visible = visible_gpus(&machine.why_none_visible);
  machine.cublaslt = find_cublaslt();
  machine.nccl = find_nccl();
  for (const GpuFacts& gpu : machine.gpus.gpus) {
    machine.gpu_nodes.push_back(node_of_pci_device(gpu.pci, root.string()));
  }
}

}  // namespace

Machine survey_machine(const Environment& environment, const std::string& root) {
  const fs::path base = root;
  Machine machine;
  survey_gpu_side(machine, base);

  machine.processor = field(base / "proc/cpuinfo", "model name");
  machine.baseline = runs_baseline();
  for (const auto set : kernels::cpu::instruction_sets()) {
    machine.instruction_sets.emplace_back(kernels::cpu::name_of(set));
  }
  const std::vector<int> cores = allowed_cores();
  machine.cores = static_cast<int>(cores.size());
  machine.nodes = numa_nodes(base / "sys/devices/system/node", cores);
  machine.why_no_memory_policy = why_no_memory_policy();
  const DeviceMemory memory = host_memory(root);
  machine.total_bytes = memory.total;
  machine.free_bytes = memory.available;
  machine.lockable_bytes = lockable_bytes();
  machine.huge_pages = chosen_of(first_line(base / "sys/kernel/mm/transparent_hugepage/enabled"));

  machine.shared_memory = shared_memory(ipc::kMaxRanks);
  machine.model = default_model_facts(environment);
  machine.host = cluster::host_name();
  return machine;
}

}  // namespace nvllm::launcher
