// PipelineRank: a rank of a pipeline and what it runs on, for tests of stage links. Tests add the
// memory that they hand over.
#pragma once

#include <memory>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "ipc/group.h"

namespace nvllm::ipc {

struct PipelineRank {
  // A collective call. On GPUs the rank sees only its own by now.
  PipelineRank(Member& member, DeviceKind device, const CommunicatorOptions& options)
      : member(member),
        stage(member.rank() / (member.size() / options.stages)),
        last(options.stages - 1),
        backend(create_backend(device)),
        stream(backend->create_stream()),
        event(backend->create_event()),
        communicator(create_communicator(member, *backend, options)),
        link(last == 0 ? nullptr : create_stage_link(member, *backend, options, *communicator)) {}

  // Waits until nothing is in flight from or to this rank.
  void settle() {
    communicator->wait(*stream);
    member.exchange({}, "the end of its part");
  }

  Member& member;
  const int stage, last;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> event;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<StageLink> link;  // nullptr: there is one stage
};

}  // namespace nvllm::ipc
