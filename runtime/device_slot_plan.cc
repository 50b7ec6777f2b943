#include "runtime/device_slot_plan.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kvcache/chunked/device_slots.h"

namespace nvllm::runtime {
namespace {

class DeviceSlotPlan {
 public:
  // Of a plan that has its blocks, of which no more than `useful` would be of use.
  DeviceSlotPlan(const EngineOptions& options, const MemoryBudget& budget, std::int64_t useful,
                 MemoryPlan& plan)
      : options_(options),
        room_(budget),
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
    if (plan_.chunked_seqs < options_.max_num_seqs) tell();
  }

 private:
  // Slots for what so many sequences fill.
  std::int64_t to_fill(std::int64_t sequences) const {
    const std::int64_t rows = std::max(options_.max_num_batched_tokens, options_.max_num_seqs);
    return std::min(kvcache::max_write_slots(sequences, rows, options_.block_size), plan_.blocks);
  }

  // By default a quarter of the room, and at least what one sequence needs.
  std::int64_t room_to_fill() const {
    if (options_.resident_blocks) return std::max(slots_ - *options_.resident_blocks, to_fill(1));
    return std::max(slots_ / 4, to_fill(1));
  }

  void check_room() const {
    if (to_fill(1) > slots_) {
      const std::string more = room_.more_on_device(useful_);
      fail("a step of ", options_.max_num_batched_tokens, " tokens fills ", to_fill(1),
           to_fill(1) == 1 ? " block of " : " blocks of ", options_.block_size,
           " tokens, there is room for ", slots_, " in ", budget_, "; pass a smaller ",
           options_.ring_slots > 2 ? "--ring-slots, " : "",
           "--max-num-batched-tokens or --transfer-block", more.empty() ? "" : ", or ", more);
    }
    const std::int64_t wished = std::min(options_.resident_blocks.value_or(0), plan_.blocks);
    if (std::min(to_fill(1) + wished, plan_.blocks) <= slots_) return;
    fail("--kv-resident-blocks ", *options_.resident_blocks, ": beside ", to_fill(1),
         " blocks that are filled there is room for ", slots_ - to_fill(1), " of ",
         options_.block_size, " tokens, in ", budget_, "; pass ", slots_ - to_fill(1),
         " or less, or auto");
  }

  void tell() {
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
  const MemoryBudget& room_;
  const std::int64_t slots_;  // that there is room for
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
