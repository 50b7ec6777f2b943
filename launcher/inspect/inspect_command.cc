// The command inspect: describes a model, and can load it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"
#include "device/host_memory.h"
#include "device/nvml.h"
#include "device/topology.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/inspect/inspect_report.h"
#include "launcher/session/load_display.h"
#include "launcher/session/text_io.h"
#include "launcher/supervise/run_workers.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {
namespace {

std::vector<runtime::RankLoad> load(WorkerGroup& workers, const Options& options) {
  LoadDisplay progress(workers.console());
  return ask_rank0<std::vector<runtime::RankLoad>>(
      workers.member(), "load", options.inspect_checksums, [&](const ipc::RequestEvent& pushed) {
        if (pushed.name() == "load_state") progress.show(pushed.get<runtime::LoadState>());
      });
}

// The GPUs on which the ranks would run.
std::vector<GpuFacts> gpus_of_ranks(const std::vector<std::string>& visible, int ranks) {
  std::vector<GpuFacts> all = survey_gpus().gpus, chosen;
  for (const std::string& name : visible) {
    if (static_cast<int>(chosen.size()) == ranks) break;
    for (std::size_t index = 0; index < all.size(); ++index) {
      if (name == std::to_string(index) || all[index].uuid.starts_with(name)) {
        chosen.push_back(all[index]);
        break;
      }
    }
  }
  return chosen;
}

// Memory of the GPUs if the ranks would run there, otherwise of the machine. Only free memory of a
// GPU counts.
KvMemory kv_memory(const GroupOptions& group, const runtime::EngineOptions& engine) {
  std::vector<std::string> visible;
  if (cuda_built() && group.device != DeviceKind::cpu) visible = visible_gpus();
  if (visible.empty()) {
    const std::uint64_t free = host_memory().available;
    return {.where = format_bytes(free) + " of this machine's memory that is free", .bytes = free};
  }
  KvMemory memory{.bytes = ~std::uint64_t{0}, .shared = false};
  std::uint64_t total = 0;
  const int ranks = group.ranks.value_or(static_cast<int>(visible.size()));
  for (const GpuFacts& gpu : gpus_of_ranks(visible, ranks)) {
    const auto usable = static_cast<std::uint64_t>(static_cast<double>(gpu.total_bytes) *
                                                   engine.gpu_memory_utilization);
    if (std::min(usable, gpu.free_bytes) >= memory.bytes) continue;
    memory.bytes = std::min(usable, gpu.free_bytes);
    total = gpu.total_bytes;
  }
  if (total == 0) return {};
  memory.where = str(format_bytes(memory.bytes), " of each GPU's ", format_bytes(total));
  return memory;
}

}  // namespace

int run_inspect(const Options& options, std::int64_t started_ns) {
  const runtime::OpenModel model = runtime::open_model(options.model);
  InspectReport report{.started_ns = started_ns, .model = {}, .loads = {}};
  report.kv_memory = kv_memory(options.group, options.engine);
  int ranks = 0;
  if (options.inspect_load) {
    if (!model.dummy && !model.checkpoint) {
      throw UsageError(str("--load: ", model.path,
                           " is a configuration alone; pass its folder as --model, or "
                           "--load-format dummy"));
    }
    const LaunchPlan plan = plan_launch(options.group, cuda_built(), visible_gpus);
    ranks = plan.ranks;
    const int exit_code = run_workers(options.group, plan, &model, [&](WorkerGroup& workers) {
      report.loads = load(workers, options);
      const ipc::Group& group = workers.member().group();
      for (int rank = 0; rank < ranks && group.boxes() > 1; ++rank) {
        const int box = group.box_of(rank);
        report.places.push_back({box, group.box_text(box)});
      }
    });
    if (exit_code != kExitFine) return exit_code;
  } else {
    ranks = plan_ranks(options.group, cuda_built(), visible_gpus);
  }
  report.model = runtime::describe_model(model, ranks);
  write_results(options.json ? format_json(report) : format_table(report));
  return kExitFine;
}

}  // namespace nvllm::launcher
