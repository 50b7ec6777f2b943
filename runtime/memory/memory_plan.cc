#include "runtime/memory/memory_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "kvcache/chunked/device_slots.h"

namespace nvllm::runtime {
namespace {

[[noreturn]] void fail_for_no_block(const EngineOptions& options, const MemoryBudget& budget) {
  if (options.kv_mode() == KvMode::contiguous) {
    fail("--max-seq-len ", options.max_seq_len, " needs ", format_bytes(budget.bytes_for(1)),
         " of KV cache in one piece, there is ", budget.describe(),
         "; pass a smaller --max-seq-len, or ", budget.fix(1));
  }
  fail("the KV cache has no room for a single block of ", options.block_size, " tokens, ",
       format_bytes(budget.bytes_for(1)), ": there is ", budget.describe(), "; ", budget.fix(1));
}

// The model's limit, or the longest length that fits; a note reports the latter.
std::int64_t choose_model_len(const EngineOptions& options, std::int64_t wanted,
                              const MemoryBudget& budget, std::vector<std::string>& notes) {
  const std::int64_t fits = budget.blocks() * options.block_size;
  if (wanted <= fits) return wanted;
  const std::int64_t needed = divide_up(wanted, options.block_size);
  const std::string need = str(wanted, " tokens need ", format_bytes(budget.bytes_for(needed)),
                               " of KV cache, there is ", budget.describe());
  if (budget.blocks() == 0) fail_for_no_block(options, budget);
  if (options.max_model_len) {
    fail("--max-model-len ", need, "; pass --max-model-len ", fits, " or less, or ",
         budget.fix(needed));
  }
  notes.push_back(
      str("max_model_len is ", fits, ": the model's ", need, "; for more, ", budget.fix(needed)));
  return fits;
}

// Host memory that is requested must be available; otherwise allocation would fail midway.
void check_host_memory(const EngineOptions& options, std::span<const RankMemory> ranks) {
  if (!options.kv_offloading_bytes) return;
  const auto requested = static_cast<std::uint64_t>(*options.kv_offloading_bytes);
  for (const RankMemory& rank : ranks) {
    if (rank.host_block == 0 || requested <= rank.host_available) continue;
    fail("--kv-offloading-size: ", format_bytes(requested), " of host memory were asked for, ",
         format_bytes(rank.host_available), " are available; pass ", rank.host_available >> 30,
         " or less");
  }
}

// Chooses the host blocks that sequences are swapped to; the device blocks are already chosen. Two
// layer groups divide this memory in the same ratio as that of the device.
void choose_host_blocks(const EngineOptions& options, DeviceKind device,
                        std::span<const RankMemory> ranks, std::int64_t useful, MemoryPlan& plan) {
  if (options.preemption != Preemption::swap) return;
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t cache = 0, largest_block = 0, largest_cache = 0, largest_state = 0;
  for (const RankMemory& rank : ranks) {
    left = std::min(left, rank.host_available);
    const std::uint64_t own = static_cast<std::uint64_t>(plan.blocks) * rank.block +
                              static_cast<std::uint64_t>(plan.window_blocks) * rank.window_block;
    cache += own + static_cast<std::uint64_t>(plan.state_snapshots) * rank.state;
    largest_state = std::max(largest_state, rank.state);
    largest_cache = std::max(largest_cache, own);
    largest_block = std::max(largest_block, rank.block);
  }
  if (device == DeviceKind::cpu) left -= std::min(left, cache);
  const auto requested = static_cast<std::uint64_t>(options.swap_space_bytes);
  const std::uint64_t bytes = std::min(requested, left / 4 / ranks.size());
  plan.host_states = choose_host_states(options, bytes, largest_state);
  const std::uint64_t for_blocks =
      bytes - static_cast<std::uint64_t>(plan.host_states) * largest_state;
  const double part = static_cast<double>(for_blocks) / static_cast<double>(largest_cache);
  const auto part_of = [&](std::int64_t blocks) {
    return static_cast<std::int64_t>(part * static_cast<double>(blocks));
  };
  const std::int64_t fits = plan.window_blocks > 0
                                ? part_of(plan.blocks)
                                : static_cast<std::int64_t>(for_blocks / largest_block);
  if (bytes < requested && fits < useful &&
      options.swap_space_bytes != EngineOptions::kUsualSwapSpace) {
    plan.notes.push_back(str("swap space is ", format_bytes(bytes), " of each rank instead of ",
                             format_bytes(requested), ": a quarter of the ", format_bytes(left),
                             " of host memory that are available"));
  }
  plan.host_blocks = std::min({fits, useful, kMaxBlocks});
  if (plan.window_blocks > 0)
    plan.host_window_blocks = std::min({part_of(plan.window_blocks), useful, kMaxBlocks});
}

// Describes how much of a cache in host memory stays on the device.
std::string describe_residents(const EngineOptions& options, const MemoryPlan& plan) {
  if (plan.resident_blocks == 0) return "nothing of it stays on the device";
  return str(plan.resident_blocks * options.block_size, " tokens of it stay on the device (",
             plan.resident_blocks, " blocks, --kv-resident-blocks)");
}

}  // namespace

std::int64_t usual_transfer_block(std::int64_t longest) {
  constexpr std::int64_t kMin = 256, kMax = 4096;
  const auto eighth = static_cast<std::uint64_t>(longest / 8);
  return std::clamp(static_cast<std::int64_t>(std::bit_floor(eighth)), kMin, kMax);
}

EngineOptions resolve_options(EngineOptions options, std::int64_t model_limit) {
  const KvMode mode = options.kv_mode();
  // Page bounds stay on the device: recomputed sequences get new ones, swapped ones would have
  // none.
  if (options.decode_attention == DecodeAttention::quest) {
    options.preemption = Preemption::recompute;
  }
  if (mode == KvMode::paged) return options;
  options.preemption = Preemption::recompute;
  if (mode == KvMode::contiguous) {
    options.block_size = options.max_seq_len;
    options.max_num_seqs = 1;
    options.prefix_caching = false;
    return options;
  }
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t longest = wanted_model_len(options, model_limit);
  if (mode == KvMode::layerwise) {
    options.max_num_batched_tokens = longest + options.max_num_seqs;
  }
  options.block_size = std::min(options.transfer_block.value_or(usual_transfer_block(longest)),
                                round_up(longest, kMultiple));
  return options;
}

std::int64_t wanted_model_len(const EngineOptions& options, std::int64_t model_limit) {
  if (options.max_seq_len > model_limit) {
    fail("--max-seq-len ", options.max_seq_len,
         " exceeds the model's limit (max_position_embeddings, stretched by RoPE scaling) of ",
         model_limit, "; pass ", model_limit, " or less");
  }
  const std::int64_t wanted = options.max_model_len.value_or(
      options.kv_mode() == KvMode::contiguous ? options.max_seq_len : model_limit);
  if (wanted > model_limit) {
    fail("--max-model-len ", wanted,
         " exceeds the model's limit (max_position_embeddings, stretched by RoPE scaling) of ",
         model_limit, "; pass ", model_limit, " or less");
  }
  return wanted;
}

KvOffload choose_offload(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                         std::span<const RankMemory> ranks, std::vector<std::string>& notes,
                         std::int64_t window, bool can_be_chunked) {
  std::vector<RankMemory> beside_windows;
  if (window > 0) {
    beside_windows = ranks_beside_windows(
        ranks, choose_window_blocks(options, model_limit, device, ranks, window));
    ranks = beside_windows;
  }
  const MemoryBudget budget(options, device, ranks);
  const std::int64_t longest = wanted_model_len(options, model_limit);
  const std::int64_t requested = options.max_num_seqs * divide_up(longest, options.block_size);
  if (requested <= budget.blocks()) return KvOffload::off;
  const bool alone = options.max_num_seqs == 1;
  const bool layerwise = !can_be_chunked || (alone && 2 * budget.blocks() < requested);
  notes.push_back(str(
      "--kv-offload auto is ", layerwise ? "layerwise: " : "chunked: ", options.max_num_seqs,
      alone ? " sequence of " : " sequences of ", longest, " tokens need ",
      format_bytes(budget.bytes_for(requested)), " on the device, there is ", budget.describe()));
  return layerwise ? KvOffload::layerwise : KvOffload::chunked;
}

namespace {

// Blocks in host memory are large, so that copying is fast; only whole blocks are shared.
std::string sharing(const EngineOptions& options) {
  return options.prefix_caching ? "; prompts share whole blocks alone (--transfer-block)" : "";
}

}  // namespace

MemoryPlan plan_memory(const EngineOptions& options, std::int64_t model_limit, DeviceKind device,
                       std::span<const RankMemory> all_ranks, std::int64_t window) {
  NVLLM_CHECK(!all_ranks.empty() && options.block_size > 0);
  check_host_memory(options, all_ranks);
  MemoryPlan plan;
  if (window > 0)
    plan.window_blocks = choose_window_blocks(options, model_limit, device, all_ranks, window);
  std::vector<RankMemory> ranks = ranks_beside_windows(all_ranks, plan.window_blocks);
  plan.state_snapshots = choose_state_snapshots(options, model_limit, device, ranks);
  ranks = ranks_beside_snapshots(ranks, plan.state_snapshots);
  const MemoryBudget budget(options, device, ranks);
  plan.max_model_len =
      choose_model_len(options, wanted_model_len(options, model_limit), budget, plan.notes);
  const std::int64_t useful =
      options.max_num_seqs * divide_up(plan.max_model_len, options.block_size);
  const bool as_requested = options.kv_cache_memory_bytes && options.kv_mode() == KvMode::paged;
  plan.blocks = as_requested ? budget.blocks() : std::min(budget.blocks(), useful);
  choose_host_blocks(options, device, ranks, useful, plan);
  plan.max_num_seqs = plan.chunked_seqs = options.max_num_seqs;
  if (options.kv_mode() == KvMode::chunked) {
    choose_device_slots(options, budget, useful, plan);
  }
  if (window > 0) {
    plan.notes.push_back(str("KV cache: ", plan.blocks * options.block_size,
                             " tokens; layers with a window of ", window, " have room for ",
                             plan.window_blocks * options.block_size,
                             ", since they keep their windows alone"));
  }
  const bool has_states = std::ranges::any_of(ranks, &RankMemory::state);
  if (has_states && options.prefix_caching && options.state_snapshots != 0)
    plan.notes.push_back(describe_snapshots(ranks, plan.state_snapshots));
  if (plan.all_resident()) {
    plan.notes.push_back(str("KV cache: ", plan.blocks, " blocks of ", options.block_size,
                             " tokens, all of them on the device; none is written to the host",
                             sharing(options)));
    return plan;
  }
  if (ranks.front().host_block > 0) {
    plan.notes.push_back(str("KV cache: ", plan.blocks, " blocks of ", options.block_size,
                             " tokens in ", format_bytes(budget.host_bytes_for(plan.blocks)),
                             " of host memory; there may be ", budget.describe_host(),
                             sharing(options)));
  }
  if (options.kv_mode() == KvMode::chunked) {
    plan.notes.push_back(str("KV cache: ", describe_residents(options, plan)));
  }
  return plan;
}

namespace {

class DeviceSlotPlan {
 public:
  // plan: its blocks are already chosen, of which at most `useful` can be used.
  DeviceSlotPlan(const EngineOptions& options, const MemoryBudget& budget, std::int64_t useful,
                 MemoryPlan& plan)
      : options_(options),
        memory_budget_(budget),
        slots_(budget.device_slots(plan.blocks)),
        useful_(useful),
        budget_(budget.describe_device()),
        plan_(plan) {}

  void choose() {
    check_room();
    const bool all = options_.resident_blocks.value_or(plan_.blocks) >= plan_.blocks;
    if (all && plan_.blocks <= slots_) {
      plan_.device_slots = plan_.resident_blocks = plan_.blocks;
      return;
    }
    plan_.chunked_seqs = options_.max_num_seqs;
    while (to_fill(plan_.chunked_seqs) > room_to_fill()) --plan_.chunked_seqs;
    const std::int64_t filled = to_fill(plan_.chunked_seqs);
    plan_.resident_blocks =
        std::min(options_.resident_blocks.value_or(slots_ - filled), plan_.blocks);
    plan_.device_slots = std::min(filled + plan_.resident_blocks, plan_.blocks);
    plan_.max_num_seqs =
        std::min(options_.max_num_seqs, plan_.chunked_seqs + plan_.resident_blocks);
    if (plan_.chunked_seqs < options_.max_num_seqs) add_note();
  }

 private:
  // Slots that the open blocks of `sequences` sequences and a step fill.
  std::int64_t to_fill(std::int64_t sequences) const {
    const std::int64_t rows = std::max(options_.max_num_batched_tokens, options_.max_num_seqs);
    return std::min(kvcache::max_write_slots(sequences, rows, options_.block_size), plan_.blocks);
  }

  // By default a quarter of the slots, and at least what one sequence needs.
  std::int64_t room_to_fill() const {
    if (options_.resident_blocks) return std::max(slots_ - *options_.resident_blocks, to_fill(1));
    return std::max(slots_ / 4, to_fill(1));
  }

  void check_room() const {
    if (to_fill(1) > slots_) {
      const std::string more = memory_budget_.more_on_device(useful_);
      fail("a step of ", options_.max_num_batched_tokens, " tokens fills ", to_fill(1),
           to_fill(1) == 1 ? " block of " : " blocks of ", options_.block_size,
           " tokens, there is room for ", slots_, " in ", budget_, "; pass a smaller ",
           options_.ring_slots > 2 ? "--ring-slots, " : "",
           "--max-num-batched-tokens or --transfer-block", more.empty() ? "" : ", or ", more);
    }
    const std::int64_t requested = std::min(options_.resident_blocks.value_or(0), plan_.blocks);
    if (std::min(to_fill(1) + requested, plan_.blocks) <= slots_) return;
    fail("--kv-resident-blocks ", *options_.resident_blocks, ": beside ", to_fill(1),
         " blocks that are filled there is room for ", slots_ - to_fill(1), " of ",
         options_.block_size, " tokens, in ", budget_, "; pass ", slots_ - to_fill(1),
         " or less, or auto");
  }

  void add_note() {
    const std::string what =
        plan_.resident_blocks == 0
            ? str("max_num_seqs is ", plan_.max_num_seqs, " instead of ", options_.max_num_seqs)
            : str("at most ", plan_.chunked_seqs,
                  plan_.chunked_seqs == 1 ? " sequence runs at a time that does"
                                          : " sequences run at a time that do",
                  " not stay on the device whole");
    plan_.notes.push_back(str(what, ": each sequence fills a block of ", options_.block_size,
                              " tokens on the device, in ", budget_,
                              "; for more, pass a smaller --transfer-block"));
  }

  const EngineOptions& options_;
  const MemoryBudget& memory_budget_;
  const std::int64_t slots_;  // that fit on the device
  const std::int64_t useful_;
  const std::string budget_;
  MemoryPlan& plan_;
};

}  // namespace

void choose_device_slots(const EngineOptions& options, const MemoryBudget& budget,
                         std::int64_t useful, MemoryPlan& plan) {
  DeviceSlotPlan(options, budget, useful, plan).choose();
}

}  // namespace nvllm::runtime
