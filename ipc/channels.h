// The fixed set of rings of a group; each process opens the ends it uses.
#pragma once

#include "ipc/ring.h"

namespace nvllm::ipc {

// Rank 0 to all other ranks.
BroadcastRing calls_ring(const Member& member);
// Rank `rank` (1 and above) to rank 0.
BroadcastRing replies_ring(const Member& member, int rank);
// The launcher to rank 0.
BroadcastRing requests_ring(const Member& member);
// Rank 0 to the launcher.
BroadcastRing results_ring(const Member& member);

}  // namespace nvllm::ipc
