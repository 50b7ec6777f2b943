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
#include "ipc/group.h"

namespace nvllm::ipc {

// Used by one thread, with one stream, and another one for results. It must outlive the streams'
// work, and the graphs that were captured with it.
class StageLink {
 public:
  virtual ~StageLink() = default;

  // Enqueues that the next stage gets `data`; that `data` becomes what the stage before has sent.
  // Dense tensors. A peer that does not come ends the group with an Error that names the culprit.
  virtual void send(TensorView data, Stream& stream) = 0;
  virtual void receive(TensorView data, Stream& stream) = 0;

  // The first rank of the last stage: enqueues that rank 0 gets `data`. In a stream of its own: it
  // waits for rank 0's host, which may be busy, or wait for what the stages do next.
  virtual void send_result(TensorView data, Stream& results) = 0;
  // At the end: results that rank 0 has not taken are left out.
  virtual void drop_results() = 0;
  // Rank 0's main thread: waits for it. An Error as above.
  virtual void receive_result(void* to, std::size_t bytes) = 0;
  // Whether receive_result() would find something.
  virtual bool result_ready() const = 0;
};

// Of a group in so many stages, more than one. A collective call of all ranks.
std::unique_ptr<StageLink> create_stage_link(Member& member, Backend& backend, int stages);

}  // namespace nvllm::ipc
