// Who holds up a group of GPU ranks. What a GPU waits for is seen in no rank's record, so the
// records are looked at for signs of a rank that does not do its part.
#pragma once

#include "ipc/group.h"

namespace nvllm::ipc {

// The rank that most likely holds up the group, out of the ranks' records: one that has ended; one
// that shows no sign of life while this rank does; one that has started fewer calls than this one;
// one whose main thread has been in a call for more than half of the step timeout; one of this
// rank's pipeline stage that has started fewer collectives than this one; else the suspect
// (kNobody: the lowest other rank). Calls are compared between stages only. stages: of the
// pipeline, which divide the ranks.
int find_culprit(const Group& group, int self, int suspect = RankSnapshot::kNobody, int stages = 1);

}  // namespace nvllm::ipc
