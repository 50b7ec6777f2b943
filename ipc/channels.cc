#include "ipc/channels.h"

#include "base/check.h"
#include "base/text.h"
#include "ipc/channels_layout.h"

namespace nvllm::ipc {
namespace {

BroadcastRing ring_at(const Member& member, std::size_t offset, const RingShape& shape) {
  BroadcastRing ring;
  ring.memory = member.channel_memory().subspan(offset, RingMemory::bytes_needed(shape));
  ring.shape = shape;
  return ring;
}

}  // namespace

BroadcastRing calls_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).calls, kCallsShape);
  ring.name = "calls";
  ring.writer = 0;
  for (int rank = 1; rank < member.size(); ++rank) ring.readers.push_back(rank);
  return ring;
}

BroadcastRing replies_ring(const Member& member, int rank) {
  NVLLM_CHECK(rank >= 1 && rank < member.size(), "rank ", rank);
  const ChannelsLayout layout(member.size());
  BroadcastRing ring =
      ring_at(member, layout.replies + static_cast<std::size_t>(rank - 1) * layout.reply_stride,
              kRepliesShape);
  ring.name = str("replies of rank ", rank);
  ring.writer = rank;
  ring.readers = {0};
  return ring;
}

BroadcastRing requests_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).requests, kRequestsShape);
  ring.name = "requests";
  ring.writer = kLauncher;
  ring.readers = {0};
  return ring;
}

BroadcastRing results_ring(const Member& member) {
  BroadcastRing ring = ring_at(member, ChannelsLayout(member.size()).results, kResultsShape);
  ring.name = "results";
  ring.writer = 0;
  ring.readers = {kLauncher};
  return ring;
}

}  // namespace nvllm::ipc
