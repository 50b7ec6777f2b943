#include "runtime/model_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/gemm/linear.h"
#include "kernels/pointwise/copy.h"
#include "layers/sampler.h"
#include "runtime/decode_graphs.h"
#include "runtime/runner_limits.h"
#include "runtime/slot_table.h"
#include "runtime/step_results.h"
#include "runtime/step_staging.h"
#include "runtime/step_timer.h"

namespace nvllm::runtime {
namespace {

constexpr int kTimedSteps = 8;  // under way at most, with room to spare

}  // namespace

struct ModelRunner::State {
  State(const model::Decoder& decoder, Backend& backend, Stream& stream,
        ipc::Communicator* communicator, const RunnerOptions& options, Trace* trace)
      : decoder(decoder),
        backend(backend),
        stream(stream),
        communicator(communicator),
        options(options),
        trace(trace),
        matmul(kernels::create_matmul(backend)),
        memory(decoder, decoder_limits(options), backend),
        sampler(decoder.head().vocabulary(), decoder.head().stride(), decoder.config().vocab_size,
                decoder.shard(), sampler_limits(options), backend),
        staging(backend, staging_limits(options), options.steps_ahead + 1),
        slots(options.max_num_seqs, options.max_model_len, options.block_size),
        graphs(backend, options.max_num_seqs, options.max_model_len),
        timer(trace, backend, stream, kTimedSteps),
        cache(decoder, backend, stream, this->options) {
    if (!options.keeps_results) return;
    const layers::SamplerLimits limits = sampler_limits(options);
    results.emplace(backend, limits.rows, limits.max_logprobs, options.steps_ahead + 1);
  }

  // Nobody uses the memory any more when it goes. Where that cannot be had the process is about to end.
  ~State() {
    try {
      stream.synchronize_for(std::chrono::seconds(10));
    } catch (const std::exception&) {  // it was told, or nobody wants to know
    }
  }

  const model::Decoder& decoder;
  Backend& backend;
  Stream& stream;
  ipc::Communicator* communicator;
  const RunnerOptions options;
  Trace* trace;
  std::function<void()> progress;

  std::unique_ptr<kernels::Matmul> matmul;
  model::DecoderMemory memory;
  layers::Sampler sampler;
  StepStaging staging;
  SlotTable slots;
  DecodeGraphs graphs;
  StepTimer timer;
  RunnerCache cache;
  std::optional<StepResults> results;
  std::vector<kvcache::StepSequence> sequences;  // of the step; kept for its memory
  bool starts = false;                           // a sequence, with this step

  TensorView tokens;  // where the sampler leaves what it draws, in every step

  void follow(const StepMessage& message);
  kvcache::StepPlan begin_cache_step(std::uint64_t number, std::span<const StepPart> parts,
                                     bool may_repeat);
  layers::Sampled run(std::uint64_t number, std::span<const StepPart> parts);
  layers::Sampled run_as_graph(std::span<const StepPart> parts, StepShape shape,
                               std::uint64_t cache_work, const layers::SampleStep& wishes);
  void load(std::span<const StepPart> parts, const StepShape& shape);
  // All but the head's product, which is returned.
  kernels::Linear forward(const StepShape& shape);
  layers::SampleStep wishes_of(std::span<const StepPart> parts);
  // head: the product that makes the logits; nullptr: they are there.
  layers::Sampled sample(const StepShape& shape, std::int64_t rows,
                         const layers::SampleStep& wishes, const kernels::Linear* head);
};

// What a step changes beside its rows, in the message's order.
void ModelRunner::State::follow(const StepMessage& message) {
  slots.follow(message);
  for (const std::uint32_t slot : message.ended) cache->end_sequence(slot);
  cache.swap(message.swap_out, message.swap_in);
  for (const SlotStart& start : message.started) sampler.set(start.slot, start.rules, stream);
  starts = !message.started.empty();
}

// In the batch's order, which is the staging's: the sequences that draw come first.
kvcache::StepPlan ModelRunner::State::begin_cache_step(std::uint64_t number,
                                                       std::span<const StepPart> parts,
                                                       bool may_repeat) {
  sequences.clear();
  for (const bool draws : {true, false}) {
    for (const StepPart& part : parts) {
      if (part.draws != draws) continue;
      sequences.push_back({.slot = part.slot,
                           .blocks = slots[part.slot].blocks,
                           .first = part.first,
                           .rows = part.rows,
                           .resident = slots[part.slot].resident,
                           .to_come = part.to_come});
    }
  }
  return cache->begin_step(
      {.number = number, .sequences = sequences, .may_repeat = may_repeat, .starts = starts},
      stream);
}

layers::Sampled ModelRunner::State::run(std::uint64_t number, std::span<const StepPart> parts) {
  const StepShape shape = shape_of(parts);
  const layers::SampleStep wishes = wishes_of(parts);
  // One row each, and all of them drawn: the rows are the sequences and the logits.
  const bool decodes = shape.max_query_rows == 1 && shape.logit_rows == shape.rows;
  const kvcache::StepPlan plan =
      begin_cache_step(number, parts, options.graphs && decodes && !starts);
  layers::Sampled sampled;
  if (plan.repeats) {
    sampled = run_as_graph(parts, shape, plan.work, wishes);
  } else {
    load(parts, shape);
    const kernels::Linear head = forward(shape);
    if (shape.logit_rows > 0) sampled = sample(shape, shape.logit_rows, wishes, &head);
  }
  cache->end_step(stream);
  return sampled;
}

layers::Sampled ModelRunner::State::run_as_graph(std::span<const StepPart> parts, StepShape shape,
                                                 std::uint64_t cache_work,
                                                 const layers::SampleStep& wishes) {
  const std::int64_t rows = shape.rows;
  DecodeGraphs::Kind kind = graphs.kind_of(shape.sequences, shape.max_kv_length);
  kind.cache_work = cache_work;
  // Log-probabilities, which few ask for, are many graphs' worth of variety.
  kind.draws = wishes.logprobs < 0;
  kind.adjust = kind.draws && wishes.adjust;
  kind.filter = kind.draws && wishes.filter;
  shape.sequences = shape.rows = shape.logit_rows = kind.sequences;
  shape.max_kv_length = kind.max_kv_length;
  shape.all_logits = true;
  load(parts, shape);
  graphs.run(kind, stream, [&] {
    const kernels::Linear head = forward(shape);
    if (!kind.draws) return matmul->linear(head, stream);
    tokens = sample(shape, kind.sequences, wishes, &head).tokens;
  });
  if (!kind.draws) return sample(shape, rows, wishes, nullptr);
  layers::Sampled sampled;
  sampled.tokens = TensorView(tokens.data, tokens.dtype, {rows});
  return sampled;
}

void ModelRunner::State::load(std::span<const StepPart> parts, const StepShape& shape) {
  staging.load(parts, slots, shape, results ? results->place() : 0, *cache, stream, communicator);
}

kernels::Linear ModelRunner::State::forward(const StepShape& shape) {
  kernels::step_input(staging.input(shape, *cache), stream);
  layers::Batch batch = staging.batch(shape);
  // Kernels need not look up where the one sequence lies.
  if (options.kv_mode == KvMode::contiguous) batch.block_table = {};
  return decoder.forward_to_head(batch, *cache, memory, {stream, *matmul, communicator, progress});
}

// What the rows of a step want of the sampler.
layers::SampleStep ModelRunner::State::wishes_of(std::span<const StepPart> parts) {
  layers::SampleStep wishes;
  for (const StepPart& part : parts) {
    const SlotSequence& sequence = slots[part.slot];
    if (part.draws) {
      wishes.adjust |= sequence.adjusts;
      wishes.filter |= sequence.filters;
      wishes.logprobs = std::max(wishes.logprobs, sequence.logprobs);
    }
    if (part.scored > 0) wishes.logprobs = std::max(wishes.logprobs, sequence.prompt_logprobs);
  }
  return wishes;
}

layers::Sampled ModelRunner::State::sample(const StepShape& shape, std::int64_t rows,
                                           const layers::SampleStep& wishes,
                                           const kernels::Linear* head) {
  layers::SampleStep step = staging.sample_step(shape, rows, cache->tokens());
  step.logits = memory.logits(decoder, rows);
  step.head = head;
  step.adjust = wishes.adjust;
  step.filter = wishes.filter;
  step.logprobs = wishes.logprobs;
  layers::Scratch no_scratch;
  const layers::Sampled sampled =
      sampler.sample(step, staging.last_tokens(), {stream, *matmul, no_scratch, communicator});
  if (results) {
    kernels::copy_to_ring(
        {.words = sampled.tokens, .index = staging.results(shape), .ring = results->places()},
        stream);
  }
  return sampled;
}

ModelRunner::ModelRunner(const model::Decoder& decoder, Backend& backend, Stream& stream,
                         ipc::Communicator* communicator, const RunnerOptions& options,
                         Trace* trace, std::function<void()> progress)
    : state_(std::make_unique<State>(decoder, backend, stream, communicator, options, trace)) {
  state_->progress = std::move(progress);
}

ModelRunner::~ModelRunner() = default;

kvcache::BlockShape ModelRunner::block_shape() const {
  return state_->cache.block_shape();
}

CacheBytes ModelRunner::cache_bytes() const {
  return state_->cache.bytes();
}

void ModelRunner::adopt(kernels::ProductChoices choices) {
  state_->matmul->adopt(std::move(choices));
}

void ModelRunner::tune_products(const TunedSize& size) {
  runtime::tune_products(size, state_->decoder, state_->memory,
                         {state_->stream, *state_->matmul, state_->communicator}, state_->backend);
}

ProductReport ModelRunner::products() {
  return {.known = state_->matmul->known(), .measured = state_->matmul->choices(), .problem = {}};
}

void ModelRunner::make_cache(std::int64_t blocks, std::int64_t host_blocks,
                             std::int64_t device_slots, bool all_stay) {
  state_->cache.make(blocks, host_blocks, device_slots, all_stay);
}

void ModelRunner::step(const StepMessage& message) {
  State& state = *state_;
  NVLLM_CHECK(state.cache.made(), "a step before make_cache()");
  const Trace::Span span(state.trace, "host", "step", message.number);
  state.timer.begin(message.number, state.stream);
  state.follow(message);
  const std::span<const StepPart> parts = state.slots.parts();
  const layers::Sampled sampled =
      parts.empty() ? layers::Sampled{} : state.run(message.number, parts);
  state.timer.end(state.stream);
  if (state.results) {
    state.results->add(message.number, parts, state.slots, sampled, state.stream);
  }
}

kvcache::KvTraffic ModelRunner::kv_traffic() const {
  return state_->cache.made() ? state_->cache->traffic() : kvcache::KvTraffic{};
}

bool ModelRunner::result_ready() {
  return state_->results && state_->results->ready();
}

StepResult ModelRunner::take_result() {
  NVLLM_CHECK(state_->results.has_value(), "this rank keeps no results");
  StepResult result = state_->results->take(state_->stream, state_->communicator);
  state_->timer.collect();
  return result;
}

}  // namespace nvllm::runtime
