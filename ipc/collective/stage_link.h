// StageLink: sends tensors through the stages of a pipeline. Each rank sends to the rank with the
// same number in the next stage; the results of a step are sent from the first rank of the last
// stage to rank 0's host.
//
//   rank      = stage * ranks of a stage + number within the stage
//   stage 0     computes, send() ─▶ stage 1   receive(), computes, send() ─▶ ... ─▶ the last stage
//   rank 0      receive_result() ◀──────────────────────────────────────────── send_result()
//
// Both sides of a transfer pass the same number of bytes, in the same order. Each direction buffers
// two pieces, so a stage with small tensors may be two of them ahead.
#pragma once

#include <cstddef>
#include <memory>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread, with one stream. It must outlive the stream's work, and the graphs that were
// captured with it.
class StageLink {
 public:
  virtual ~StageLink() = default;

  // Enqueue sending `data` to the next stage, or receiving `data` from the previous one. Tensors
  // must be dense. A peer that does not respond ends the group with an Error that names the
  // culprit.
  virtual void send(TensorView data, Stream& stream) = 0;
  virtual void receive(TensorView data, Stream& stream) = 0;

  // On the first rank of the last stage: sends `data` (host memory) to rank 0 once the event has
  // been reached. A thread of the link does this, because it waits for rank 0's host, which may be
  // busy, or may itself wait for the stages. Data and event must stay valid until rank 0 has
  // received it.
  virtual void send_result(TensorView data, const Event& ready) = 0;
  // For shutdown: drops results that rank 0 has not taken. Waits until none is being sent.
  virtual void drop_results() = 0;
  // Called by rank 0's main thread: waits for a result. Throws an Error as above.
  virtual void receive_result(void* to, std::size_t bytes) = 0;
  // Whether receive_result() would return without waiting.
  virtual bool result_ready() const = 0;
};

// For a group of more than one stage. A collective call of all ranks. communicator: of this rank's
// stage; it must outlive the link, and its waits report failures of the link. On CUDA, "auto" is
// peer memory; without that, or if the group is on several boxes, it is NCCL.
std::unique_ptr<StageLink> create_stage_link(Member& member, Backend& backend,
                                             const CommunicatorOptions& options,
                                             Communicator& communicator);

}  // namespace nvllm::ipc
