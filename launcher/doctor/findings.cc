#include "launcher/doctor/findings.h"

#include <algorithm>

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
                               machine.cores, machine.cores == 1 ? " core" : " cores", " for us; ",
                               joined(machine.instruction_sets))};
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
            node.cores.empty() ? "no cores for us" : str("cores ", core_list(node.cores)), ", ",
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
    finding.fix = "run tools/fetch-model, or pass --model";
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

}  // namespace nvllm::launcher
