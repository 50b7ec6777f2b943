#include "launcher/doctor/findings.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace nvllm::launcher {
namespace {

constexpr std::uint64_t kLittleMemory = std::uint64_t{1} << 30;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Finding examine_processor(const Machine& machine) {
  Finding finding{.subject = "processor",
                  .found = str(machine.processor.empty() ? "unknown" : machine.processor, "; ",
                               machine.cores, machine.cores == 1 ? " core" : " cores",
                               " available; ", joined(machine.instruction_sets))};
  if (!machine.baseline) {
    finding.verdict = Verdict::stops;
    finding.found += "; this program needs AVX2, FMA and BMI2 (x86-64-v3)";
    finding.fix = "use a processor from 2013 or later, or a virtual machine that shows them";
  }
  return finding;
}

// "0-3,8" of 0, 1, 2, 3, 8.
std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? str(cores[i]) : str(cores[i], '-', cores[last]);
    i = last + 1;
  }
  return text;
}

Finding examine_numa(const Machine& machine) {
  Finding finding{.subject = "NUMA"};
  if (machine.nodes.empty()) finding.found = "the system does not tell";
  for (const NumaNode& node : machine.nodes) {
    if (!finding.found.empty()) finding.found += "; ";
    finding.found +=
        str("node ", node.node, ": ",
            node.cores.empty() ? "no cores available" : str("cores ", core_list(node.cores)), ", ",
            format_bytes(node.bytes));
  }
  if (machine.nodes.size() > 1 && !machine.why_no_memory_policy.empty()) {
    finding.verdict = Verdict::warning;
    finding.found += str("; to choose between them is refused: ", machine.why_no_memory_policy);
    finding.fix = "pinned memory may lie far from its GPU; docker run --cap-add SYS_NICE";
  }
  return finding;
}

Finding examine_memory(const Machine& machine) {
  Finding finding{.subject = "memory",
                  .found = str(format_bytes(machine.total_bytes), ", ",
                               format_bytes(machine.free_bytes), " free")};
  if (machine.free_bytes < kLittleMemory) {
    finding.verdict = Verdict::warning;
    finding.fix = "end other programs, or raise the container's limit (docker run --memory)";
  }
  return finding;
}

Finding examine_huge_pages(const Machine& machine) {
  Finding finding{
      .subject = "huge pages",
      .found = machine.huge_pages.empty() ? "the system does not tell" : machine.huge_pages};
  if (machine.huge_pages == "never") {
    finding.verdict = Verdict::warning;
    finding.found += "; weights on the CPU are read more slowly";
    finding.fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root";
  }
  return finding;
}

Finding examine_shared_memory(const SharedMemoryFacts& facts) {
  Finding finding{.subject = "/dev/shm", .found = facts.error};
  if (!facts.error.empty()) {
    finding.verdict = Verdict::stops;
    finding.fix =
        "this user must be able to write to it: mount -t tmpfs -o mode=1777 tmpfs /dev/shm";
    return finding;
  }
  finding.found =
      str(format_bytes(facts.total_bytes), ", ", format_bytes(facts.free_bytes), " free");
  if (facts.free_bytes >= facts.needed_all) return finding;
  const bool stops = facts.free_bytes < facts.needed_one;
  finding.verdict = stops ? Verdict::stops : Verdict::warning;
  finding.found += str("; ", stops ? "one rank needs " : "as many ranks as can be need ",
                       format_bytes(stops ? facts.needed_one : facts.needed_all));
  const std::uint64_t mebibytes = (facts.needed_all >> 20) + 64;
  finding.fix = str("mount -o remount,size=", mebibytes,
                    "M /dev/shm, or docker run --shm-size=", mebibytes, "m");
  return finding;
}

Finding examine_model(const DefaultModelFacts& model) {
  Finding finding{.subject = "default model", .found = model.path};
  if (model.there) return finding;
  if (model.path.empty()) {
    finding.found = "no place for it: neither XDG_CACHE_HOME nor HOME is an absolute path";
    finding.fix = "set one of them, or pass --model";
    finding.verdict = Verdict::warning;
  } else if (model.fetched) {
    finding.found += " is not there yet; it is fetched when it is first needed";
    finding.verdict = Verdict::note;
  } else {
    finding.found += " is not there";
    finding.fix = "nvllm-launch pull Qwen/Qwen3-0.6B, or pass --model";
    finding.verdict = Verdict::warning;
  }
  return finding;
}

// The output of several boxes is mixed: this labels a box's lines.
Finding examine_box(const Machine& machine) {
  const std::size_t gpus = machine.cuda_built.empty() ? 0 : machine.visible.size();
  return {.subject = "box",
          .found = str(machine.task.box, " of ", machine.task.boxes, " (", machine.host,
                       "), started by ", machine.task.starter, ": ",
                       gpus == 0 ? "ranks on the CPU"
                                 : str(gpus, gpus == 1 ? " GPU" : " GPUs", " for its ranks"))};
}

constexpr int kMinCapability =
    80;  // the oldest GPUs for which the kernels are compiled (compute_80)
constexpr std::uint64_t kMinLockable = std::uint64_t{64} << 20;

// "13.0" for 13000.
std::string version_text(int version) {
  return str(version / 1000, '.', version % 1000 / 10);
}

// 13 for "13.0"; 0 if it is not a version.
int major_of(const std::string& version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

std::string capability_text(int capability) {
  return str(capability / 10, '.', capability % 10);
}

Finding examine_driver(const Machine& machine) {
  const GpuSurvey& gpus = machine.gpus;
  Finding finding{.subject = "driver"};
  if (!gpus.why_none.empty()) {
    // A GPU is visible, so a run would use it.
    const bool wanted = !machine.cuda_built.empty() && !machine.visible.empty();
    finding.verdict = wanted ? Verdict::stops : Verdict::note;
    finding.found = gpus.why_none;
    finding.fix = wanted ? "reboot, or load the NVIDIA kernel module that belongs to its libraries"
                         : "for GPUs, install the NVIDIA driver; without it nvllm runs on the CPU";
    return finding;
  }
  finding.found = gpus.driver.empty() ? "of unknown version" : gpus.driver;
  if (gpus.cuda_version > 0) finding.found += str(", CUDA ", version_text(gpus.cuda_version));
  if (machine.cuda_built.empty() || gpus.cuda_version == 0) return finding;
  const int wanted = major_of(machine.cuda_built);
  if (gpus.cuda_version / 1000 < wanted && !machine.visible.empty()) {
    finding.verdict = Verdict::stops;
    finding.found += str("; this program was built with CUDA ", machine.cuda_built);
    finding.fix = str("install an NVIDIA driver for CUDA ", wanted, ", or pass --device cpu");
  }
  return finding;
}

Finding examine_one(const GpuFacts& gpu, int index, bool for_us) {
  Finding finding{.subject = str("GPU ", index)};
  if (gpu.name.empty() && gpu.uuid.empty()) {
    finding.verdict = for_us ? Verdict::stops : Verdict::warning;
    finding.found = "does not answer";
    finding.fix = "see dmesg for NVRM lines; leave it out with CUDA_VISIBLE_DEVICES, or reboot";
    return finding;
  }
  finding.found = str(gpu.name, ", ", format_bytes(gpu.total_bytes), ", ",
                      format_bytes(gpu.free_bytes), " free, PCI ", gpu.pci);
  if (gpu.capability > 0) finding.found += str(", compute ", capability_text(gpu.capability));
  if (!for_us) {
    finding.verdict = Verdict::note;
    finding.found += "; CUDA_VISIBLE_DEVICES hides it";
  } else if (gpu.prohibited) {
    finding.verdict = Verdict::stops;
    finding.found += "; its compute mode is Prohibited";
    finding.fix = str("nvidia-smi -i ", index, " -c DEFAULT");
  } else if (gpu.capability > 0 && gpu.capability < kMinCapability) {
    finding.verdict = Verdict::stops;
    finding.found += str("; the kernels need ", capability_text(kMinCapability));
    finding.fix = "leave it out with CUDA_VISIBLE_DEVICES, or pass --device cpu";
  } else if (gpu.free_bytes < gpu.total_bytes / 2) {
    finding.verdict = Verdict::warning;
    finding.found += "; other programs hold most of it";
    finding.fix = "end them (nvidia-smi lists them), or pass a smaller --gpu-memory-utilization";
  }
  return finding;
}

// The pairs of visible GPUs without access to each other's memory: "0-1".
std::vector<std::string> pairs_apart(const Machine& machine, const std::vector<int>& ours) {
  const auto for_us = [&](int gpu) {
    return std::find(ours.begin(), ours.end(), gpu) != ours.end();
  };
  std::vector<std::string> apart;
  for (const GpuPair& pair : machine.gpus.pairs) {
    if (pair.peer_access || !for_us(pair.first) || !for_us(pair.second)) continue;
    apart.push_back(str(pair.first, '-', pair.second));
  }
  return apart;
}

// How the GPUs are connected; equal connections are listed together.
std::vector<Finding> examine_links(const Machine& machine, const std::vector<std::string>& apart) {
  std::vector<std::pair<std::string, std::string>> kinds;  // kind of connection, and its pairs
  for (const GpuPair& pair : machine.gpus.pairs) {
    const GpuFacts& first = machine.gpus.gpus[static_cast<std::size_t>(pair.first)];
    const std::string between =
        pair.nvlink ? str("NVLink (", first.nvlinks, " links each)") : pair.path;
    const std::string which = str(pair.first, '-', pair.second);
    const auto same = [&](const auto& kind) { return kind.first == between; };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) {
      kinds.emplace_back(between, which);
    } else {
      found->second += ", " + which;
    }
  }
  std::vector<Finding> findings;
  for (const auto& [between, pairs] : kinds) {
    findings.push_back({.subject = "peer links", .found = str(between, " between GPUs ", pairs)});
  }
  if (!apart.empty()) {
    std::string list;
    for (const std::string& pair : apart) list += (list.empty() ? "" : ", ") + pair;
    findings.push_back(
        {.subject = "peer access",
         .verdict = Verdict::warning,
         .found = str("GPUs ", list, " cannot read each other's memory"),
         .fix = "turn ACS and the IOMMU off for them; ranks reduce with NCCL until then"});
  }
  return findings;
}

Finding examine_library(const char* name, const LibraryState& library, bool needed,
                        const char* fix) {
  Finding finding{.subject = name, .found = library.version};
  if (library.error.empty()) return finding;
  finding.found = library.error;
  finding.verdict = needed ? Verdict::stops : Verdict::note;
  finding.fix = needed ? fix : "";
  if (!needed) finding.found += "; not needed here";
  return finding;
}

Finding examine_lock_limit(const Machine& machine, bool needed) {
  Finding finding{.subject = "memory lock limit",
                  .found = machine.lockable_bytes ? format_bytes(*machine.lockable_bytes) : "none"};
  if (!needed) {
    finding.found += "; not needed on the CPU";
  } else if (machine.lockable_bytes && *machine.lockable_bytes < kMinLockable) {
    finding.verdict = Verdict::warning;
    finding.found += "; NCCL and drivers that count pinned memory against it may refuse";
    finding.fix = "ulimit -l unlimited, docker run --ulimit memlock=-1, or limits.conf";
  }
  return finding;
}

// A GPU's rank works best on cores near it.
std::vector<Finding> examine_numa_cores(const Machine& machine, const std::vector<int>& ours) {
  std::vector<Finding> findings;
  for (const int gpu : ours) {
    const int node = machine.gpu_nodes.at(static_cast<std::size_t>(gpu));
    const auto beside = [&](const NumaNode& one) { return one.node == node; };
    const auto found = std::find_if(machine.nodes.begin(), machine.nodes.end(), beside);
    if (found == machine.nodes.end() || !found->cores.empty()) continue;
    findings.push_back({.subject = str("GPU ", gpu),
                        .verdict = Verdict::warning,
                        .found = str("is beside NUMA node ", node,
                                     ", of whose cores this process "
                                     "may use none"),
                        .fix = "allow them: taskset, or docker run --cpuset-cpus"});
  }
  return findings;
}

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fine: return "fine";
    case Verdict::note: return "note";
    case Verdict::warning: return "warning";
    case Verdict::stops: return "stops";
  }
  return "?";
}

std::vector<Finding> examine(const Machine& machine) {
  std::vector<Finding> all;
  if (machine.task.boxes > 1) all.push_back(examine_box(machine));
  for (Finding& finding : examine_gpus(machine)) all.push_back(std::move(finding));
  for (Finding& finding : std::vector<Finding>{examine_processor(machine), examine_numa(machine),
                                               examine_memory(machine), examine_huge_pages(machine),
                                               examine_shared_memory(machine.shared_memory),
                                               examine_model(machine.model)}) {
    all.push_back(std::move(finding));
  }
  return all;
}

std::vector<int> default_gpus(const Machine& machine) {
  std::vector<int> ours;
  for (std::size_t i = 0; i < machine.gpus.gpus.size(); ++i) {
    const std::string& uuid = machine.gpus.gpus[i].uuid;
    const auto names_it = [&](const std::string& entry) {
      return entry == std::to_string(i) || (!uuid.empty() && uuid.starts_with(entry));
    };
    if (std::any_of(machine.visible.begin(), machine.visible.end(), names_it)) {
      ours.push_back(static_cast<int>(i));
    }
  }
  return ours;
}

std::vector<Finding> examine_gpus(const Machine& machine) {
  const std::vector<int> ours = default_gpus(machine);
  std::vector<Finding> all = {examine_driver(machine)};
  for (std::size_t i = 0; i < machine.gpus.gpus.size(); ++i) {
    const int index = static_cast<int>(i);
    const bool for_us = std::find(ours.begin(), ours.end(), index) != ours.end();
    all.push_back(examine_one(machine.gpus.gpus[i], index, for_us));
  }
  const bool computes_on_gpus = !machine.cuda_built.empty() && !machine.visible.empty();
  if (machine.cuda_built.empty()) {
    const bool waste = !machine.visible.empty();
    all.push_back({.subject = "CUDA",
                   .verdict = waste ? Verdict::warning : Verdict::note,
                   .found = "this program was built without it, and computes on the CPU",
                   .fix = waste ? "install the CUDA toolkit and NCCL, and build it again" : ""});
  } else if (!computes_on_gpus && machine.gpus.why_none.empty()) {
    all.push_back({.subject = "GPUs",
                   .verdict = Verdict::note,
                   .found = str("none available: ", machine.why_none_visible),
                   .fix = "set CUDA_VISIBLE_DEVICES to the ones to be used, or unset it"});
  }
  const std::vector<std::string> apart = pairs_apart(machine, ours);
  append(all, examine_links(machine, apart));
  append(all, examine_numa_cores(machine, ours));
  all.push_back(
      examine_library("cuBLASLt", machine.cublaslt, computes_on_gpus,
                      "install it (libcublas), or point CUDA_HOME at a toolkit that has it"));
  const bool boxes = machine.task.boxes > 1;
  all.push_back(
      examine_library("NCCL", machine.nccl, computes_on_gpus && (boxes || !apart.empty()),
                      boxes ? "install it (libnccl2)" : "install it (libnccl2), or pass --tp 1"));
  all.push_back(examine_lock_limit(machine, computes_on_gpus));
  return all;
}

}  // namespace nvllm::launcher
