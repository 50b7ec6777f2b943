#include "ipc/collective/culprit.h"

#include <vector>

namespace nvllm::ipc {

int find_culprit(const Group& group, int self, int suspect) {
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
  const RankSnapshot* slowest = &own;
  for (const RankSnapshot& rank : ranks) {
    if (rank.collective.number < slowest->collective.number) slowest = &rank;
  }
  if (slowest != &own) return slowest->rank;
  if (suspect != RankSnapshot::kNobody) return suspect;
  return self == 0 && group.size() > 1 ? 1 : 0;
}

}  // namespace nvllm::ipc
