// Finds the rank that blocks a group of GPU ranks. No rank's record shows what a GPU waits for, so
// the records are searched for a rank that does not make progress.
#pragma once

#include "ipc/group.h"

namespace nvllm::ipc {

// The rank that most likely blocks the group, judged by the ranks' records: one that has ended; one
// without a heartbeat while this rank has one; one that has started fewer calls than this one; one
// whose main thread has been in a call for more than half of the step timeout; one of this rank's
// pipeline stage that has started fewer collectives than this one; otherwise the suspect (kNobody:
// the lowest other rank). Calls are compared only within groups of several stages. stages: of the
// pipeline, which divide the ranks.
int find_culprit(const Group& group, int self, int suspect = RankSnapshot::kNobody, int stages = 1);

}  // namespace nvllm::ipc
