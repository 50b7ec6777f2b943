#include "runtime/memory/state_plan.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"

namespace nvllm::runtime {
namespace {

constexpr std::int64_t kPart = 4;

// How many states every rank can hold in the memory of `blocks` blocks.
std::int64_t fitting(std::span<const RankMemory> ranks, std::int64_t blocks) {
  std::uint64_t fit = std::numeric_limits<std::int32_t>::max();
  for (const RankMemory& rank : ranks) {
    if (rank.state == 0) continue;  // without heads
    fit = std::min(fit, static_cast<std::uint64_t>(blocks) * rank.block / rank.state);
  }
  return static_cast<std::int64_t>(fit);
}

std::uint64_t bytes_of_state(std::span<const RankMemory> ranks) {
  std::uint64_t bytes = 0;
  for (const RankMemory& rank : ranks) bytes += rank.state;
  return bytes;
}

}  // namespace

std::int64_t choose_state_snapshots(const EngineOptions& options, std::int64_t model_limit,
                                    DeviceKind device, std::span<const RankMemory> ranks) {
  if (!options.prefix_caching || bytes_of_state(ranks) == 0) return 0;
  const std::int64_t blocks = MemoryBudget(options, device, ranks).blocks();
  if (options.state_snapshots) {
    const std::int64_t fit = fitting(ranks, std::max<std::int64_t>(blocks - 1, 0));
    if (*options.state_snapshots <= fit) return *options.state_snapshots;
    fail("--state-snapshots ", *options.state_snapshots,
         ": the memory of the KV cache has room for ", fit, " of ",
         format_bytes(bytes_of_state(ranks)), "; pass ", fit, " or less, or auto");
  }
  const std::int64_t longest =
      divide_up(wanted_model_len(options, model_limit), options.block_size);
  const std::int64_t cached = std::min(blocks, options.max_num_seqs * longest);
  const std::int64_t useful =
      std::max<std::int64_t>(cached * options.block_size / options.state_snapshot_tokens, 1);
  std::int64_t part = blocks / kPart;
  if (options.max_model_len) part = std::min(part, std::max<std::int64_t>(blocks - longest, 0));
  return std::min(useful, fitting(ranks, part));
}

std::vector<RankMemory> ranks_beside_snapshots(std::span<const RankMemory> ranks,
                                               std::int64_t snapshots) {
  std::vector<RankMemory> beside(ranks.begin(), ranks.end());
  for (RankMemory& rank : beside) rank.fixed += static_cast<std::uint64_t>(snapshots) * rank.state;
  return beside;
}

std::string describe_snapshots(std::span<const RankMemory> ranks, std::int64_t snapshots) {
  const std::string each = format_bytes(bytes_of_state(ranks));
  if (snapshots == 0) {
    return str(
        "prefix caching is off: there is no room for snapshots of linear attention's states, "
        "of ",
        each, "; pass --state-snapshots, or a smaller --max-model-len");
  }
  return str("prefix caching: ", snapshots, snapshots == 1 ? " snapshot" : " snapshots",
             " of linear attention's states, of ", each, " each, may be kept (--state-snapshots)");
}

std::int64_t choose_host_states(const EngineOptions& options, std::uint64_t swap_bytes,
                                std::uint64_t largest_state) {
  if (largest_state == 0) return 0;
  return static_cast<std::int64_t>(
      std::min(static_cast<std::uint64_t>(options.max_num_seqs), swap_bytes / 2 / largest_state));
}

}  // namespace nvllm::runtime
