// StepResults: results of steps on their way from the device to rank 0's host. Each step's results
// are copied to pinned memory after it, and read once they are there. StepTimer: device time of
// each step.
//
// A copy to the host takes ten microseconds, which the next step must not wait for. So steps write
// their tokens to several device buffers in turn (kernels/pointwise/copy.h), from which another
// stream copies them.
//
// With pipeline stages the results are on the last stage's device, and arrive through the stage
// link.
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

// ResultSender: sends the results of steps from the first rank of the last stage to rank 0's
// StepResults. Used by one thread.
class ResultSender {
 public:
  // Allocates as StepResults does, for `buffers` steps in flight.
  ResultSender(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs, int buffers,
               ipc::StageLink& link);
  ~ResultSender();
  ResultSender(const ResultSender&) = delete;
  ResultSender& operator=(const ResultSender&) = delete;

  // Enqueues the send after the stream's work, which waits neither for rank 0 nor for the host.
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

// The shapes of the results of `rows` rows of logits; logprobs: as in layers::SampleStep.
layers::Sampled shape_of_results(std::int64_t rows, std::int32_t logprobs);

// Used by one thread.
class StepResults {
 public:
  // Allocates pinned memory ("step results") for `buffers` steps of `logit_rows` rows with
  // max_logprobs alternatives. link: delivers the results; nullptr: they are on this rank's device.
  StepResults(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs, int buffers,
              ipc::StageLink* link = nullptr);
  ~StepResults();
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  // Device memory of one object ("step results").
  static std::size_t bytes(std::int64_t logit_rows, int buffers);

  // The buffer to which the next step writes its tokens.
  std::int32_t next_buffer() const;
  // [buffers, logit rows], int32, on the device.
  TensorView buffers() const { return buffers_; }
  // Enqueues the copies of a step's results. sampled: empty if no logits were computed; with a
  // link, only its shapes are used.
  void enqueue_copies(std::uint64_t number, std::span<const ScheduledRows> parts, SlotTable& slots,
                      const layers::Sampled& sampled, Stream& stream);

  bool ready() const;  // whether the oldest step's results have arrived
  // Returns the oldest step's results; waits for them.
  StepResult take_oldest(Stream& stream, ipc::Communicator* communicator);

 private:
  // One sequence's part of a step.
  struct Part {
    ScheduledRows rows;
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
  std::unique_ptr<Stream> copies_;  // nullptr on a CPU, where copies are part of the step
  std::vector<Pending> pending_;
  std::size_t oldest_ = 0, count_ = 0;
};

// StepTimer: the device time of each step, for a trace. It does nothing without a trace.

// Used by one thread, with one stream.
class StepTimer {
 public:
  // steps: maximum number in flight, plus one. Waits for the stream, if there is a trace.
  StepTimer(Trace* trace, Backend& backend, Stream& stream, int steps);

  // Call around a step's work; the previous step must have ended.
  void begin(std::uint64_t step, Stream& stream);
  void end(Stream& stream);

  // Adds the steps that the device has completed since to the trace.
  void collect();

 private:
  struct Timed {
    std::unique_ptr<Event> begin, end;
    std::uint64_t step = 0;
  };

  Trace* trace_;
  std::vector<Timed> steps_;
  std::size_t oldest_ = 0, count_ = 0;
  // Common point of the two clocks: an event that was reached at anchor_ns_.
  std::unique_ptr<Event> anchor_;
  std::int64_t anchor_ns_ = 0;
};

}  // namespace nvllm::runtime
