// The worker group: how many ranks, where, and how they work together.
#include "ipc/group.h"
#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

constexpr double kShortestTimeout = 0.001;
constexpr double kLongestTimeout = 1e6;  // eleven days; nanoseconds in 64 bits hold more

void store_ranks(Options& options, const OptionValue& value) {
  options.group.ranks = value.as<int>(1, ipc::kMaxRanks);
}

void store_device(Options& options, const OptionValue& value) {
  options.group.device =
      value.one_of<DeviceChoice>("kind of device", {{"auto", DeviceChoice::automatic},
                                                    {"cpu", DeviceChoice::cpu},
                                                    {"cuda", DeviceChoice::cuda}});
}

void store_step_timeout(Options& options, const OptionValue& value) {
  options.group.step_timeout = value.seconds(kShortestTimeout, kLongestTimeout);
}

void store_collectives(Options& options, const OptionValue& value) {
  options.group.collectives = value.one_of<std::string>(
      "implementation", {{"auto", "auto"}, {"shm", "shm"}, {"peer", "peer"}, {"nccl", "nccl"}});
}

void store_log_level(Options& options, const OptionValue& value) {
  options.group.log_level = value.one_of<LogLevel>("level", {{"debug", LogLevel::debug},
                                                             {"info", LogLevel::info},
                                                             {"warning", LogLevel::warning},
                                                             {"error", LogLevel::error},
                                                             {"off", LogLevel::off}});
}

}  // namespace

OptionRows group_rows() {
  return {
      {"--tp", "--tensor-parallel-size", "N",
       "how many ranks (worker processes): 1 to 8, on GPUs one for each",
       "every GPU (up to 8); 1 on the CPU", store_ranks},
      {"--device", nullptr, "auto|cpu|cuda",
       "where the ranks compute; auto: on GPUs where there are any", "auto", store_device},
      {"--step-timeout", nullptr, "SECONDS",
       "limit of every wait for a peer (fractions allowed); whoever exceeds\n"
       "it is named, and the run ends",
       "60", store_step_timeout},
      {"--collectives", nullptr, "auto|shm|peer|nccl",
       "how ranks reduce: shm on the CPU; peer or nccl on GPUs;\n"
       "auto: peer memory, or NCCL where GPUs do not see each other's",
       "auto", store_collectives},
      {"--log-level", nullptr, "debug|info|warning|error|off",
       "which lines of the launcher and of the ranks are shown", "info", store_log_level},
  };
}

}  // namespace nvllm::launcher
