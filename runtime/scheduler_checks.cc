// What must always hold.
#include <vector>

#include "base/check.h"
#include "runtime/scheduler_state.h"

namespace nvllm::runtime {

void Scheduler::State::check_invariants() const {
  using Place = Sequence::Place;
  std::vector<const Sequence*> all;
  std::vector<int> taken(static_cast<std::size_t>(slots), 0);
  std::uint64_t newest = 0;
  for (const Sequence* sequence : running_) {
    NVLLM_CHECK(sequence->place == Place::running, "sequence ", sequence->id);
    NVLLM_CHECK_LT(newest, sequence->number);
    newest = sequence->number;
    ++taken.at(sequence->slot);
    NVLLM_CHECK_LT(sequence->length(), sequence->limit);
    NVLLM_CHECK(all.empty() || all.back()->decodes() || !sequence->decodes(), "sequence ",
                sequence->id, " decodes before an older one");
    all.push_back(sequence);
  }
  for (const Sequence* sequence : waiting_) {
    NVLLM_CHECK(sequence->place == Place::waiting, "sequence ", sequence->id);
    NVLLM_CHECK_LT(newest, sequence->number);
    newest = sequence->number;
    NVLLM_CHECK(sequence->computed == 0 || !sequence->host_blocks.empty(), "sequence ",
                sequence->id);
    all.push_back(sequence);
  }
  for (const std::uint32_t slot : free_slots_) ++taken.at(slot);
  for (const int times : taken) NVLLM_CHECK_EQ(times, 1);

  std::size_t leaving = 0;
  for (const auto& [id, sequence] : sequences) {
    NVLLM_CHECK_EQ(sequence->id, id);
    NVLLM_CHECK_LT(sequence->computed, sequence->length());
    NVLLM_CHECK_LE(sequence->length(), sequence->limit);
    if (sequence->place != Place::leaving) continue;
    ++leaving;
    NVLLM_CHECK(sequence->results_due > 0, "sequence ", id, " waits for a result that never comes");
  }
  NVLLM_CHECK_EQ(sequences.size(), running_.size() + waiting_.size() + leaving);

  std::int64_t due = 0, expected = 0;
  for (const auto& step : in_flight.steps()) due += static_cast<std::int64_t>(step.due.size());
  for (const auto& [id, sequence] : sequences) expected += sequence->results_due;
  for (const auto& sequence : over_) {
    NVLLM_CHECK(sequence->place == Place::over && sequence->results_due > 0, "sequence ",
                sequence->id);
    expected += sequence->results_due;
  }
  NVLLM_CHECK_EQ(due, expected);
  memory_.check_invariants(all);
}

}  // namespace nvllm::runtime
