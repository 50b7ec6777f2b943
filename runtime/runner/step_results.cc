#include "runtime/runner/step_results.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "layers/context.h"

namespace nvllm::runtime {
namespace {

using layers::Scratch;

std::size_t bytes_of(std::int64_t rows, std::int64_t max_logprobs) {
  return Scratch::bytes_of(DType::i32, 1, rows) * 3 +
         Scratch::bytes_of(DType::i32, rows, max_logprobs) * 2;
}

// Visits the results that are present, in the order in which they cross a stage link.
template <typename Each>
void for_each(layers::Sampled& sampled, const Each& each) {
  for (TensorView* const tensor : {&sampled.tokens, &sampled.logprob, &sampled.rank,
                                   &sampled.top_ids, &sampled.top_logprobs}) {
    if (tensor->rank > 0 && tensor->elements() > 0) each(*tensor);
  }
}

bool has_any(layers::Sampled& sampled) {
  bool any = false;
  for_each(sampled, [&](const TensorView&) { any = true; });
  return any;
}

template <typename T>
T at(const TensorView& tensor, std::int64_t row, std::int64_t column = 0) {
  const std::int64_t offset = tensor.rank == 1 ? row * tensor.stride[0]
                                               : row * tensor.stride[0] + column * tensor.stride[1];
  return tensor.as<T>()[offset];
}

}  // namespace

ResultSender::ResultSender(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs,
                           int buffers, ipc::StageLink& link)
    : backend_(backend), link_(link) {
  for (int i = 0; i < buffers; ++i) {
    steps_.push_back(
        {backend.allocate(MemoryKind::pinned, bytes_of(logit_rows, max_logprobs), "step results"),
         backend.create_event()});
  }
}

ResultSender::~ResultSender() {
  link_.drop_results();
}

// The buffer is free again: rank 0 takes the results of that step before it sends another one.
void ResultSender::send(const layers::Sampled& sampled, Stream& stream) {
  Step& step = steps_[next_];
  next_ = (next_ + 1) % steps_.size();
  Scratch memory(step.memory.data(), step.memory.bytes());
  layers::Sampled results = sampled;
  for_each(results, [&](TensorView& tensor) {
    void* const here = memory.allocate(tensor.dtype, 1, tensor.elements()).data;
    backend_.copy(here, tensor.data, tensor.bytes(), stream);
    tensor.data = here;
  });
  step.copied->record(stream);
  for_each(results, [&](TensorView& tensor) { link_.send_result(tensor, *step.copied); });
}

layers::Sampled shape_of_results(std::int64_t rows, std::int32_t logprobs) {
  layers::Sampled shapes;
  if (rows == 0) return shapes;
  shapes.tokens = {nullptr, DType::i32, {rows}};
  if (logprobs < 0) return shapes;
  shapes.logprob = {nullptr, DType::f32, {rows}};
  shapes.rank = {nullptr, DType::i32, {rows}};
  shapes.top_ids = {nullptr, DType::i32, {rows, logprobs}};
  shapes.top_logprobs = {nullptr, DType::f32, {rows, logprobs}};
  return shapes;
}

StepResults::StepResults(Backend& backend, std::int64_t logit_rows, std::int64_t max_logprobs,
                         int buffers, ipc::StageLink* link)
    : backend_(backend),
      link_(link),
      tokens_(backend.allocate(MemoryKind::device, bytes(logit_rows, buffers), "step results")),
      buffers_(tokens_.data(), DType::i32, {buffers, logit_rows}) {
  for (int i = 0; i < buffers; ++i) {
    Pending& pending = pending_.emplace_back();
    pending.memory =
        backend.allocate(MemoryKind::pinned, bytes_of(logit_rows, max_logprobs), "step results");
    pending.given = backend.create_event();
    pending.copied = backend.create_event();
  }
  if (backend.kind() != DeviceKind::cpu) copies_ = backend.create_stream(StreamPriority::high);
}

// The copies must have ended before the memory is freed.
StepResults::~StepResults() {
  try {
    if (copies_ != nullptr) copies_->synchronize_for(std::chrono::seconds(10));
  } catch (const std::exception&) {  // already reported
  }
}

std::size_t StepResults::bytes(std::int64_t logit_rows, int buffers) {
  return static_cast<std::size_t>(buffers * logit_rows) * sizeof(std::int32_t);
}

std::int32_t StepResults::next_buffer() const {
  return static_cast<std::int32_t>((oldest_ + count_) % pending_.size());
}

void StepResults::enqueue_copies(std::uint64_t number, std::span<const ScheduledRows> parts,
                                 SlotTable& slots, const layers::Sampled& sampled, Stream& stream) {
  NVLLM_CHECK_LT(count_, pending_.size());
  const std::int32_t buffer = next_buffer();
  Pending& pending = pending_[static_cast<std::size_t>(buffer)];
  ++count_;
  pending.number = number;
  pending.parts.clear();
  for (const ScheduledRows& part : parts) {
    const SlotSequence& sequence = slots[part.slot];
    pending.parts.push_back({part, sequence.logprobs, sequence.prompt_logprobs});
  }
  pending.sampled = sampled;
  if (link_ == nullptr) return enqueue_copies_from_here(pending, buffer, stream);
  Scratch memory(pending.memory.data(), pending.memory.bytes());
  for_each(pending.sampled, [&](TensorView& tensor) {
    tensor.data = memory.allocate(tensor.dtype, 1, tensor.elements()).data;
  });
  // The last stage sends nothing for a step that neither samples nor has log-probabilities. Such a
  // step is complete when this stage is done with it.
  if (!has_any(pending.sampled)) pending.copied->record(stream);
}

void StepResults::enqueue_copies_from_here(Pending& pending, std::int32_t buffer, Stream& stream) {
  Scratch memory(pending.memory.data(), pending.memory.bytes());
  const auto copy = [&](TensorView& tensor, Stream& on) {
    if (tensor.data == nullptr || tensor.elements() == 0) return;
    NVLLM_CHECK(tensor.contiguous(), tensor.describe());
    void* const here = memory.allocate(tensor.dtype, 1, tensor.elements()).data;
    backend_.copy(here, tensor.data, tensor.bytes(), on);
    tensor.data = here;
  };
  // The next step overwrites these.
  copy(pending.sampled.logprob, stream);
  copy(pending.sampled.rank, stream);
  copy(pending.sampled.top_ids, stream);
  copy(pending.sampled.top_logprobs, stream);
  Stream& copies = copies_ != nullptr ? *copies_ : stream;
  if (copies_ != nullptr) {
    pending.given->record(stream);
    copies.wait(*pending.given);
  }
  if (pending.sampled.tokens.data != nullptr) {
    pending.sampled.tokens.data = buffers_.rows(buffer, 1).data;
  }
  copy(pending.sampled.tokens, copies);
  pending.copied->record(copies);
}

bool StepResults::ready() const {
  if (count_ == 0) return false;
  const Pending& oldest = pending_[oldest_];
  layers::Sampled results = oldest.sampled;
  return link_ != nullptr && has_any(results) ? link_->result_ready() : oldest.copied->reached();
}

TokenLogprobs StepResults::logprobs_of(const layers::Sampled& sampled, std::int64_t row,
                                       std::int32_t alternatives) {
  TokenLogprobs result;
  result.top.reserve(static_cast<std::size_t>(std::max(alternatives, 0)));
  result.chosen = {at<std::int32_t>(sampled.tokens, row), at<float>(sampled.logprob, row),
                   at<std::int32_t>(sampled.rank, row)};
  for (std::int32_t i = 0; i < alternatives; ++i) {
    result.top.push_back({at<std::int32_t>(sampled.top_ids, row, i),
                          at<float>(sampled.top_logprobs, row, i), i + 1});
  }
  return result;
}

void StepResults::await(Pending& pending, Stream& stream, ipc::Communicator* communicator) {
  if (link_ != nullptr && has_any(pending.sampled)) {
    return for_each(pending.sampled, [&](TensorView& tensor) {
      link_->receive_result(tensor.data, tensor.bytes());
    });
  }
  if (communicator == nullptr) return pending.copied->synchronize();
  if (count_ == 1) communicator->wait(stream);  // nothing else is in flight
  communicator->wait(*pending.copied);
}

StepResult StepResults::take_oldest(Stream& stream, ipc::Communicator* communicator) {
  NVLLM_CHECK_LT(0u, count_);
  Pending& pending = pending_[oldest_];
  await(pending, stream, communicator);
  StepResult result;
  result.number = pending.number;
  result.tokens.reserve(pending.parts.size());
  for (const Part& part : pending.parts) {
    if (part.rows.prompt_logprobs > 0) {
      StepResult::PromptLogprobs& prompt = result.prompts.emplace_back();
      prompt.slot = part.rows.slot;
      for (std::int64_t i = 0; i < part.rows.prompt_logprobs; ++i) {
        prompt.tokens.push_back(
            logprobs_of(pending.sampled, part.rows.prompt_logits + i, part.prompt_logprobs));
      }
    }
    if (!part.rows.samples) continue;
    StepResult::Token& token = result.tokens.emplace_back();
    token.slot = part.rows.slot;
    token.token = at<std::int32_t>(pending.sampled.tokens, part.rows.sample_logits);
    if (part.logprobs >= 0) {
      token.logprobs = logprobs_of(pending.sampled, part.rows.sample_logits, part.logprobs);
    }
  }
  oldest_ = (oldest_ + 1) % pending_.size();
  --count_;
  return result;
}

StepTimer::StepTimer(Trace* trace, Backend& backend, Stream& stream, int steps) : trace_(trace) {
  if (trace_ == nullptr) return;
  for (int i = 0; i < steps; ++i) {
    steps_.push_back({backend.create_event(true), backend.create_event(true)});
  }
  anchor_ = backend.create_event(true);
  anchor_->record(stream);
  stream.synchronize();
  anchor_ns_ = now_ns();
}

void StepTimer::begin(std::uint64_t step, Stream& stream) {
  if (trace_ == nullptr) return;
  collect();
  if (count_ == steps_.size()) {  // timings were not collected in time: drop the oldest
    oldest_ = (oldest_ + 1) % steps_.size();
    --count_;
  }
  Timed& timed = steps_[(oldest_ + count_) % steps_.size()];
  ++count_;
  timed.step = step;
  timed.begin->record(stream);
}

void StepTimer::end(Stream& stream) {
  if (trace_ != nullptr) steps_[(oldest_ + count_ - 1) % steps_.size()].end->record(stream);
}

void StepTimer::collect() {
  for (; count_ > 0 && steps_[oldest_].end->reached(); --count_) {
    Timed& timed = steps_[oldest_];
    const auto at = [&](const Event& event) {
      return anchor_ns_ + static_cast<std::int64_t>(event.seconds_since(*anchor_) * 1e9);
    };
    const std::int64_t begin = at(*timed.begin), end = at(*timed.end);
    trace_->add_span("device", "step", begin, end, timed.step);
    // Intervals are single-precision floats, which are exact enough when short. The old anchor's
    // event is reused.
    anchor_ns_ = end;
    std::swap(anchor_, timed.end);
    oldest_ = (oldest_ + 1) % steps_.size();
  }
}

}  // namespace nvllm::runtime
