#include "launcher/bench/startup.h"

#include <algorithm>

namespace nvllm::launcher {

std::vector<StartupStage> startup_stages(std::int64_t started_ns, const runtime::EngineInfo& info,
                                         std::int64_t asked_ns, std::int64_t first_token_ns) {
  const auto latest = [&](auto time_of) {
    std::int64_t last = started_ns;
    for (const runtime::RankLoad& rank : info.ranks) last = std::max(last, time_of(rank));
    return last;
  };
  using runtime::RankLoad;
  const std::pair<const char*, std::int64_t> stages[] = {
      {"all ranks forked and joined",
       latest([](const RankLoad& rank) { return rank.report.start.joined_ns; })},
      {"devices ready", latest([](const RankLoad& rank) { return rank.report.start.backend_ns; })},
      {"communicators ready",
       latest([](const RankLoad& rank) { return rank.report.start.communicator_ns; })},
      {"weights loaded", latest([](const RankLoad& rank) { return rank.times.loaded_ns; })},
      {"memory, graphs and cache ready", info.ready_ns},
      {"prompt asked", asked_ns},
      {"first token", first_token_ns},
  };
  std::vector<StartupStage> result;
  for (const auto& [name, at] : stages) {
    result.push_back({name, static_cast<double>(at - started_ns) * 1e-9});
  }
  return result;
}

}  // namespace nvllm::launcher
