// The command doctor: prints the findings about this machine.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "cluster/task.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/doctor/findings.h"
#include "launcher/doctor/machine.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::ptrdiff_t count_of(const std::vector<Finding>& findings, Verdict verdict) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.verdict == verdict; });
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string place(const Machine& machine) {
  const std::size_t gpus = machine.cuda_built.empty() ? 0 : machine.visible.size();
  if (gpus == 0) return "on the CPU";
  return str("on ", gpus, gpus == 1 ? " GPU" : " GPUs");
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json library_json(const LibraryState& library) {
  return {{"version", text_or_null(library.version)}, {"error", text_or_null(library.error)}};
}

Json gpus_json(const Machine& machine) {
  const std::vector<int> ours = default_gpus(machine);
  Json gpus = Json::array();
  for (std::size_t i = 0; i < machine.gpus.gpus.size(); ++i) {
    const GpuFacts& gpu = machine.gpus.gpus[i];
    gpus.push_back({{"index", i},
                    {"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"pci", gpu.pci},
                    {"total_bytes", gpu.total_bytes},
                    {"free_bytes", gpu.free_bytes},
                    {"compute_capability", gpu.capability},
                    {"nvlinks", gpu.nvlinks},
                    {"numa_node", machine.gpu_nodes.at(i)},
                    {"visible", std::count(ours.begin(), ours.end(), static_cast<int>(i)) > 0}});
  }
  return gpus;
}

Json links_json(const Machine& machine) {
  Json links = Json::array();
  for (const GpuPair& pair : machine.gpus.pairs) {
    links.push_back({{"gpus", {pair.first, pair.second}},
                     {"nvlink", pair.nvlink},
                     {"path", pair.path},
                     {"peer_access", pair.peer_access}});
  }
  return links;
}

Json numa_json(const Machine& machine) {
  Json nodes = Json::array();
  for (const NumaNode& node : machine.nodes) {
    nodes.push_back({{"node", node.node}, {"cores", node.cores}, {"bytes", node.bytes}});
  }
  return nodes;
}

Json findings_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", finding.subject},
                    {"verdict", name_of(finding.verdict)},
                    {"found", finding.found},
                    {"fix", text_or_null(finding.fix)}});
  }
  return list;
}

}  // namespace

std::string format_findings(const Machine& machine, const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.subject.size());
  std::string text;
  for (const Finding& finding : findings) {
    text += str(padded(name_of(finding.verdict), 9), padded(finding.subject, width + 2),
                finding.found, '\n');
    if (!finding.fix.empty()) {
      text += str(std::string(9 + width + 2, ' '), "fix: ", finding.fix, '\n');
    }
  }
  const auto stops = count_of(findings, Verdict::stops);
  const auto warnings = count_of(findings, Verdict::warning);
  if (stops > 0) return text + "\nnvllm cannot work here before that is fixed\n";
  return text + str("\nnvllm can run here, ", place(machine),
                    warnings == 0   ? ""
                    : warnings == 1 ? "; one thing could be better"
                                    : str("; ", warnings, " things could be better"),
                    '\n');
}

std::string format_findings_json(const Machine& machine, const std::vector<Finding>& findings) {
  const SharedMemoryFacts& shm = machine.shared_memory;
  const Json json = {
      {"version", kVersion},
      {"works", count_of(findings, Verdict::stops) == 0},
      {"findings", findings_json(findings)},
      {"built_with_cuda", text_or_null(machine.cuda_built)},
      {"driver", text_or_null(machine.gpus.driver)},
      {"driver_cuda_version", machine.gpus.cuda_version},
      {"gpus", gpus_json(machine)},
      {"peer_links", links_json(machine)},
      {"cublaslt", library_json(machine.cublaslt)},
      {"nccl", library_json(machine.nccl)},
      {"processor", text_or_null(machine.processor)},
      {"instruction_sets", machine.instruction_sets},
      {"cores", machine.cores},
      {"numa", numa_json(machine)},
      {"memory", {{"total_bytes", machine.total_bytes}, {"free_bytes", machine.free_bytes}}},
      {"memory_lock_bytes", machine.lockable_bytes ? Json(*machine.lockable_bytes) : Json()},
      {"huge_pages", text_or_null(machine.huge_pages)},
      {"shared_memory",
       {{"error", text_or_null(shm.error)},
        {"total_bytes", shm.total_bytes},
        {"free_bytes", shm.free_bytes},
        {"needed_bytes", shm.needed_all}}},
      {"box", machine.task.boxes == 1 ? Json()
                                      : Json{{"number", machine.task.box},
                                             {"of", machine.task.boxes},
                                             {"host", machine.host}}},
      {"default_model",
       {{"path", text_or_null(machine.model.path)}, {"there", machine.model.there}}}};
  return json_text(json, 2) + '\n';
}

int run_doctor(const Options& options, std::int64_t) {
  Machine machine = survey_machine(process_environment);
  machine.task = cluster::find_task();
  const std::vector<Finding> findings = examine(machine);
  write_results(options.json ? format_findings_json(machine, findings)
                             : format_findings(machine, findings));
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::stops) {
      fail(finding.subject, ": ", finding.found, "; ", finding.fix);
    }
  }
  return kExitFine;
}

}  // namespace nvllm::launcher
