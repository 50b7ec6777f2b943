// Shares of the KV cache's memory: of the window group, and of snapshots of linear attention's
// states.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "kvcache/window_blocks.h"
#include "runtime/memory/memory_plan.h"

namespace nvllm::runtime {
namespace {

class WindowPlan {
 public:
  WindowPlan(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
             std::span<const RankMemory> ranks, std::int64_t window)
      : options_(options),
        device_(device),
        ranks_(ranks),
        blocks_of_longest_(divide_up(wanted_model_len(options, model_limit), options.block_size)),
        windows_of_longest_(
            std::min(kvcache::window_blocks(window, options.block_size), blocks_of_longest_)) {}

  std::int64_t choose() const {
    const std::int64_t each = fitting(Blocks{}, {.all = 1, .windows = 1});
    const std::int64_t half = fitting(Blocks{}, {.all = 0, .windows = 1}) / 2;
    const std::int64_t min_windows = std::min(windows_of_longest_, each);
    if (all_beside(min_windows) < blocks_of_longest_) {
      // Either the options are refused later, or the maximum length becomes shorter.
      return options_.max_model_len ? min_windows
                                    : std::max(min_windows, std::min({needed_by(1), half, each}));
    }
    std::int64_t blocks = std::max(min_windows, std::min(needed_by(options_.max_num_seqs), half));
    if (const std::int64_t longest = max_longest_sequences(); longest > 0)
      blocks = std::max(blocks, needed_by(longest));
    blocks = std::min(blocks, fitting({.all = blocks_of_longest_}, {.all = 0, .windows = 1}));
    // Memory that ranks share is divided into whole blocks of either kind.
    while (blocks > min_windows && all_beside(blocks) < blocks_of_longest_) --blocks;
    // A size requested in bytes is used entirely: prefixes of either group may stay longer.
    const std::int64_t useful = options_.max_num_seqs * blocks_of_longest_;
    if (options_.kv_cache_memory_bytes && all_beside(blocks) > useful)
      blocks += fitting({.all = useful, .windows = blocks}, {.all = 1, .windows = 1});
    return blocks;
  }

 private:
  struct Blocks {
    std::int64_t all = 0, windows = 0;
  };

  static std::uint64_t bytes_of(const Blocks& blocks, const RankMemory& rank) {
    return static_cast<std::uint64_t>(blocks.all) * rank.block +
           static_cast<std::uint64_t>(blocks.windows) * rank.window_block;
  }

  // How many times `more` fits beside `taken`.
  std::int64_t fitting(const Blocks& taken, const Blocks& more) const {
    std::vector<RankMemory> ranks(ranks_.begin(), ranks_.end());
    for (RankMemory& rank : ranks) {
      rank.fixed += bytes_of(taken, rank);
      rank.block = bytes_of(more, rank);
    }
    return MemoryBudget(options_, device_, ranks).blocks();
  }
  std::int64_t all_beside(std::int64_t windows) const {
    return fitting({.all = 0, .windows = windows}, {.all = 1, .windows = 0});
  }

  // Blocks that `sequences` of the longest sequences need, including one step's rows.
  std::int64_t needed_by(std::int64_t sequences) const {
    const std::int64_t chunk = divide_up(options_.max_num_batched_tokens, options_.block_size);
    return std::min(sequences * windows_of_longest_ + chunk, sequences * blocks_of_longest_);
  }

  // How many of the longest sequences fit at the same time, up to max_num_seqs.
  std::int64_t max_longest_sequences() const {
    std::int64_t fit = 0, none = options_.max_num_seqs + 1;  // none: does not fit
    while (fit + 1 < none) {
      const std::int64_t middle = fit + (none - fit) / 2;
      const bool fits = all_beside(needed_by(middle)) >= middle * blocks_of_longest_;
      (fits ? fit : none) = middle;
    }
    return fit;
  }

  const EngineOptions& options_;
  const DeviceKind device_;
  const std::span<const RankMemory> ranks_;
  const std::int64_t blocks_of_longest_, windows_of_longest_;
};

}  // namespace

std::int64_t choose_window_blocks(const EngineOptions& options, std::int64_t model_limit,
                                  DeviceKind device, std::span<const RankMemory> ranks,
                                  std::int64_t window) {
  return WindowPlan(options, model_limit, device, ranks, window).choose();
}

std::vector<RankMemory> ranks_beside_windows(std::span<const RankMemory> ranks,
                                             std::int64_t window_blocks) {
  std::vector<RankMemory> beside(ranks.begin(), ranks.end());
  for (RankMemory& rank : beside)
    rank.fixed += static_cast<std::uint64_t>(window_blocks) * rank.window_block;
  return beside;
}

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
