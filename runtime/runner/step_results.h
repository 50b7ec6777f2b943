// StepResults: the results of steps, on their way from the device to rank 0's host. Each step's
// results are copied to pinned memory behind it, and read when they are there. StepTimer: the
// device's time for each step.
//
// A copy to the host takes ten microseconds, for which the next step must not wait: a step leaves
// its tokens in the next of several device buffers (kernels/pointwise/copy.h), from where another
// stream copies them.
//
// With pipeline stages the results are on the last stage's device, and come through the stage link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "layers/sampler.h"
#include "runtime/runner/slot_table.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// ResultSender: on the first rank of the last stage, sends the results of steps to rank 0's
// StepResults. Used by one thread.
class ResultSender {
 public:
  // Memory as StepResults has, for as many steps as may be in flight.
  ResultSender(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs, int buffers,
               ipc::StageLink& link);
  ~ResultSender();
  ResultSender(const ResultSender&) = delete;
  ResultSender& operator=(const ResultSender&) = delete;

  // Enqueues it behind the stream's work, which waits neither for rank 0 nor for the host.
  void send(const layers::Sampled& sampled, Stream& stream);

 private:
  struct Step {
    Buffer memory;
    std::unique_ptr<Event> copied;
  };

  Backend& backend_;
  ipc::StageLink& link_;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

// What results so many rows of logits will give there; logprobs: as in layers::SampleStep.
layers::Sampled shape_of_results(std::int64_t rows, std::int32_t logprobs);

// Used by one thread.
class StepResults {
 public:
  // Pinned memory ("step results") for `buffers` steps of so many logit rows with so many
  // alternatives. link: by which they come; nullptr: they are on this rank's device.
  StepResults(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs, int buffers,
              ipc::StageLink* link = nullptr);
  ~StepResults();
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  // Device memory that one takes ("step results").
  static std::size_t bytes(std::int64_t logit_rows, int buffers);

  // The buffer that the tokens of the step that is added next belong in.
  std::int32_t next_buffer() const;
  // [buffers, logit rows], int32, on the device.
  TensorView buffers() const { return buffers_; }
  // Enqueues the copies of a step's results. sampled: nothing if no logits were wanted; where they
  // come by the link, their shapes.
  void enqueue_copies(std::uint64_t number, std::span<const StepPart> parts, SlotTable& slots,
                      const layers::Sampled& sampled, Stream& stream);

  bool ready() const;  // the oldest step's are there
  // The oldest step's. Waits for it.
  StepResult take_oldest(Stream& stream, ipc::Communicator* communicator);

 private:
  // A sequence's share of a step.
  struct Part {
    StepPart rows;
    std::int32_t logprobs = -1, prompt_logprobs = -1;
  };
  struct Pending {
    Buffer memory;
    std::unique_ptr<Event> given, copied;
    std::uint64_t number = 0;
    std::vector<Part> parts;
    layers::Sampled sampled;  // in `memory`
  };

  void enqueue_copies_from_here(Pending& pending, std::int32_t buffer, Stream& stream);
  void await(Pending& pending, Stream& stream, ipc::Communicator* communicator);
  static TokenLogprobs logprobs_of(const layers::Sampled& sampled, std::int64_t row,
                                   std::int32_t alternatives);

  Backend& backend_;
  ipc::StageLink* const link_;
  Buffer tokens_;
  TensorView buffers_;
  std::unique_ptr<Stream> copies_;  // nullptr: copies are the step's own, on a CPU
  std::vector<Pending> pending_;
  std::size_t oldest_ = 0, count_ = 0;
};

// StepTimer: the device's time for each step, for a trace. Without a trace it does nothing.

// Used by one thread, with one stream.
class StepTimer {
 public:
  // steps: that may be under way, and one more. Waits for the stream, if there is a trace.
  StepTimer(Trace* trace, Backend& backend, Stream& stream, int steps);

  // Around the work of a step; that of the step before has ended begin()s.
  void begin(std::uint64_t step, Stream& stream);
  void end(Stream& stream);

  // Enters the steps that the device has run since into the trace.
  void collect();

 private:
  struct Timed {
    std::unique_ptr<Event> begin, end;
    std::uint64_t step = 0;
  };

  Trace* trace_;
  std::vector<Timed> steps_;
  std::size_t oldest_ = 0, count_ = 0;
  // The clocks' common point: an event that was reached at this time.
  std::unique_ptr<Event> anchor_;
  std::int64_t anchor_ns_ = 0;
};

}  // namespace nvllm::runtime
