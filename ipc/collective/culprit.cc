#include "ipc/collective/culprit.h"

#include <vector>

namespace nvllm::ipc {
namespace {

// Among the `count` ranks from ranks[first] on, the one with the smallest amount, if that is less
// than the amount of ranks[self]; otherwise kNobody.
template <typename Amount>
int one_behind(const std::vector<RankSnapshot>& ranks, int self, int first, int count,
               const Amount& amount_of) {
  const RankSnapshot* const own = &ranks[static_cast<std::size_t>(self)];
  const RankSnapshot* smallest = own;
  for (int rank = first; rank < first + count; ++rank) {
    const RankSnapshot& other = ranks[static_cast<std::size_t>(rank)];
    if (amount_of(other) < amount_of(*smallest)) smallest = &other;
  }
  return smallest == own ? RankSnapshot::kNobody : smallest->rank;
}

// Another rank whose main thread has been in a call since before that time.
int one_in_a_call(const std::vector<RankSnapshot>& ranks, int self, std::int64_t before_ns) {
  int longest = RankSnapshot::kNobody;
  for (const RankSnapshot& rank : ranks) {
    if (rank.rank == self || rank.call.text.empty() || rank.call.since_ns >= before_ns) continue;
    before_ns = rank.call.since_ns;
    longest = rank.rank;
  }
  return longest;
}

}  // namespace

int find_culprit(const Group& group, int self, int suspect, int stages) {
  constexpr std::int64_t kSilence = 2'000'000'000;  // ns; several heartbeats
  std::vector<RankSnapshot> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(group.snapshot(rank));
  const RankSnapshot& own = ranks[static_cast<std::size_t>(self)];

  for (const RankSnapshot& rank : ranks) {
    if (rank.rank != self && rank.phase == Phase::ended) return rank.rank;
  }
  for (const RankSnapshot& rank : ranks) {
    if (rank.heartbeat_ns + kSilence < own.heartbeat_ns) return rank.rank;
  }
  if (stages > 1) {
    const int late = one_behind(ranks, self, 0, group.size(), [](const auto& r) { return r.step; });
    if (late != RankSnapshot::kNobody) return late;
    const int busy = one_in_a_call(ranks, self, now_ns() - group.step_timeout().count() / 2);
    if (busy != RankSnapshot::kNobody) return busy;
  }
  const int of_stage = group.size() / stages;
  const int slowest = one_behind(ranks, self, self / of_stage * of_stage, of_stage,
                                 [](const auto& r) { return r.collective.number; });
  if (slowest != RankSnapshot::kNobody) return slowest;
  if (suspect != RankSnapshot::kNobody) return suspect;
  return self == 0 && group.size() > 1 ? 1 : 0;
}

}  // namespace nvllm::ipc
