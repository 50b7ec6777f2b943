// StageLink: how tensors go through the stages of a pipeline. Each rank hands over to the rank of
// the next stage that has its number there; what a step gives goes from the first rank of the last
// stage to rank 0's host.
//
//   rank      = stage * ranks of a stage + number within the stage
//   stage 0     computes, send() ─▶ stage 1   receive(), computes, send() ─▶ ... ─▶ the last stage
//   rank 0      receive_result() ◀──────────────────────────────────────────── send_result()
//
// Both sides of a hand-over name the same number of bytes, in the same order. Each direction holds
// two pieces that the other side has not taken yet, so a stage whose tensors are small may be two
// of them ahead.
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

  // Enqueues that the next stage gets `data`; that `data` becomes what the stage before has sent.
  // Dense tensors. A peer that does not come ends the group with an Error that names the culprit.
  virtual void send(TensorView data, Stream& stream) = 0;
  virtual void receive(TensorView data, Stream& stream) = 0;

  // The first rank of the last stage: rank 0 gets `data`, host memory, when the event has been
  // reached. By a thread of the link's own: it waits for rank 0's host, which may be busy, or wait
  // for what the stages do next. Data and event stay until rank 0 has it.
  virtual void send_result(TensorView data, const Event& ready) = 0;
  // At the end: results that rank 0 has not taken are left out. Waits until none is being sent.
  virtual void drop_results() = 0;
  // Rank 0's main thread: waits for it. An Error as above.
  virtual void receive_result(void* to, std::size_t bytes) = 0;
  // Whether receive_result() would find something.
  virtual bool result_ready() const = 0;
};

// Of a group in so many stages, more than one. A collective call of all ranks. communicator: of
// this rank's stage; it must outlive the link, and its waits tell what has failed in it. On CUDA
// "auto" is peer memory; without it, or where the group is on several boxes, it is NCCL.
std::unique_ptr<StageLink> create_stage_link(Member& member, Backend& backend,
                                             const CommunicatorOptions& options,
                                             Communicator& communicator);

}  // namespace nvllm::ipc
