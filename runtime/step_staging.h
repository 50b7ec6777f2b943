// StepStaging: the way of a step's numbers to the device. A step is written as one row of words, which travel with
// the call that sends them; what the forward pass reads is made of them on the device (kernels/pointwise/step_input.h).
//
// The device keeps each slot's block table and last token. A sequence's new blocks go to its table with the
// next step that has rows of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "kernels/pointwise/step_input.h"
#include "kvcache/kv_cache.h"
#include "layers/batch.h"
#include "layers/sampler.h"
#include "runtime/row_parts.h"
#include "runtime/slot_table.h"
#include "runtime/step_writer.h"

namespace nvllm::runtime {

struct StagingLimits {
  std::int64_t slots = 0;
  std::int64_t rows = 0;          // of a step
  std::int64_t logit_rows = 0;    // of a step
  std::int64_t table_blocks = 0;  // of the longest sequence
  std::int64_t part_rows = 0;  // of a part, where a step's rows are cut into parts; 0: they are not
};

// Used by one thread, with one stream.
class StepStaging {
 public:
  // `steps`: that may be on their way to the device; one more waits for the first.
  StepStaging(Backend& backend, const StagingLimits& limits, int steps);

  // Device memory that one takes ("step input").
  static std::size_t bytes(const StagingLimits& limits);

  // Sends a step. results: the place for what it gives (StepResults).
  void load(std::span<const StepPart> parts, SlotTable& slots, const StepShape& shape,
            std::int32_t results, const kvcache::KvCache& cache, Stream& stream,
            ipc::Communicator* communicator);

  // What works on it, for any step of this shape.
  kernels::StepInput input(const StepShape& shape, const kvcache::KvCache& cache) const;
  // Of the step that was loaded last.
  layers::Batch batch(const StepShape& shape);
  // The first `rows` logit rows: slots, positions, targets, history and tables.
  layers::SampleStep sample_step(const StepShape& shape, std::int64_t rows,
                                 TensorView history) const;
  TensorView last_tokens() const { return last_tokens_; }
  // load()'s `results` of a step of this shape: [1], int32.
  TensorView results(const StepShape& shape) const { return ints(StepLayout(shape).results, 1); }

 private:
  std::int32_t* begin(ipc::Communicator* communicator);
  void send(std::size_t words, Stream& stream);
  // Tells tables of new blocks, until no more are new than a step has room for.
  void tell_blocks(std::span<const StepPart> parts, SlotTable& slots, const kvcache::KvCache& cache,
                   Stream& stream, ipc::Communicator* communicator);
  TensorView ints(std::int64_t first, std::int64_t count) const;

  StagingLimits limits_;
  RowParts parts_;
  std::vector<std::int32_t> staged_;            // the step that is being written
  std::vector<std::unique_ptr<Event>> loaded_;  // of the last steps, in turn
  std::size_t next_ = 0;
  Buffer memory_;
  std::int32_t* words_ = nullptr;       // what was staged, on the device
  std::vector<const StepPart*> order_;  // the sequences of a step as they are in its batch
  std::size_t parts_at_ = 0;            // where the words of the parts are
  TensorView last_tokens_, table_;
  TensorView tokens_, positions_, places_, kv_length_, block_table_;  // as large as they get
};

}  // namespace nvllm::runtime
