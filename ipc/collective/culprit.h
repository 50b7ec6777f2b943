// Who is to blame when a collective on GPUs does not end.
#pragma once

#include "ipc/group.h"

namespace nvllm::ipc {

// The rank that most likely holds up the group, out of the ranks' records: one that has ended; one
// that shows no sign of life while this rank does; one that has begun fewer collectives than the
// rest; else the suspect (kNobody: the lowest other rank).
int find_culprit(const Group& group, int self, int suspect = RankSnapshot::kNobody);

}  // namespace nvllm::ipc
