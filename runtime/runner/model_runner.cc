#include "runtime/runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "kernels/pointwise/copy.h"

namespace nvllm::runtime {
namespace {

constexpr int kTimedSteps = 10;  // more than can be in flight

}  // namespace

ModelRunner::ModelRunner(const model::Decoder& decoder, Backend& backend, Stream& stream,
                         const Peers& peers, const RunnerOptions& options, Trace* trace,
                         std::function<void()> progress)
    : decoder_(decoder),
      backend_(backend),
      stream_(stream),
      peers_(peers),
      options_(options),
      trace_(trace),
      progress_(std::move(progress)),
      gemm_(kernels::create_gemm(
          backend, {.quantized = decoder.quantized(), .invariant = options.invariant})),
      memory_(decoder, options.decoder_limits(), backend),
      staging_(backend, options),
      slots_(options.max_num_seqs, options.max_model_len, options.block_size),
      graphs_(backend, options.max_num_seqs, options.max_model_len),
      timer_(trace, backend, stream, kTimedSteps),
      cache_(decoder, backend, stream, options_) {
  const layers::SamplerLimits limits = options.sampler_limits();
  if (decoder.has_head()) {
    sampler_.emplace(decoder.head().vocabulary(), decoder.head().stride(),
                     decoder.config().vocab_size, decoder.shard(), limits, backend);
  }
  const int buffers = options.steps_ahead + 1;
  if (options.keeps_results) {
    results_.emplace(backend, limits.rows, limits.max_logprobs, buffers, peers.link);
  }
  if (peers.link != nullptr && sampler_ &&
      decoder.shard().rank == 0) {  // all ranks there have them
    sender_.emplace(backend, limits.rows, limits.max_logprobs, buffers, *peers.link);
  }
}

// The device must be done with the memory before it is freed. If it fails, the process is about to
// end anyway.
ModelRunner::~ModelRunner() {
  try {
    stream_.synchronize_for(std::chrono::seconds(10));
  } catch (const std::exception&) {  // already reported, or no longer relevant
  }
}

void ModelRunner::adopt(kernels::GemmConfigurations configurations) {
  gemm_->adopt(std::move(configurations));
}

void ModelRunner::tune_gemms(const TunedSize& size) {
  runtime::tune_gemms(size, decoder_, memory_, device(), backend_);
}

GemmTuningReport ModelRunner::gemm_tuning() {
  return {.known = gemm_->known(), .measured = gemm_->configurations(), .problem = {}};
}

void ModelRunner::open_overlap() {
  staging_.set_overlap(peers_.communicator != nullptr &&
                       peers_.communicator->open_overlap(options_.overlapped_micro_batch_rows(),
                                                         decoder_.config().hidden_size,
                                                         decoder_.dtype()));
}

void ModelRunner::make_cache(const CacheSize& size, std::vector<float> kv_scales) {
  cache_.make(size, std::move(kv_scales));
  states_.emplace(decoder_, memory_, backend_, size.state_snapshots, size.host_states);
}

kvcache::KvTraffic ModelRunner::kv_traffic() const {
  return cache_.made() ? cache_->traffic() : kvcache::KvTraffic{};
}

// --- A step ---

void ModelRunner::step(const StepMessage& message) {
  NVLLM_CHECK(cache_.made(), "a step before make_cache()");
  const Trace::Span span(trace_, "host", "step", message.number);
  timer_.begin(message.number, stream_);
  apply(message);
  const std::span<const ScheduledRows> parts = slots_.parts();
  const layers::Sampled sampled = parts.empty() ? layers::Sampled{} : run(message.number, parts);
  states_->save(message.states, stream_);
  timer_.end(stream_);
  if (results_) results_->enqueue_copies(message.number, parts, slots_, sampled, stream_);
  if (sender_) sender_->send(sampled, stream_);
}

// Applies everything but the rows, in the message's order.
void ModelRunner::apply(const StepMessage& message) {
  slots_.apply(message);
  for (const std::uint32_t slot : message.ended) cache_->end_sequence(slot);
  cache_.swap(message);
  states_->load(message.states, stream_);
  if (sampler_) {
    for (const SlotStart& start : message.started) sampler_->set(start.slot, start.rules, stream_);
  }
  starts_ = !message.started.empty();
}

layers::Sampled ModelRunner::run(std::uint64_t number, std::span<const ScheduledRows> parts) {
  StepShape shape = shape_of(parts);
  shape.window_group = options_.window_group > 0;
  const layers::SampleStep required = required_sampling(parts);
  // Every sequence has one row and samples: sequences, rows and logits correspond.
  const bool decodes = shape.max_query_rows == 1 && shape.logit_rows == shape.rows;
  const kvcache::StepPlan plan =
      begin_cache_step(number, parts, options_.graphs && decodes && !starts_);
  layers::Sampled sampled;
  if (plan.capturable) {
    sampled = run_as_graph(parts, shape, plan.graph_key, required);
  } else {
    load(parts, shape);
    const auto head = forward(shape);
    if (head && shape.logit_rows > 0) sampled = sample(shape, shape.logit_rows, required, &*head);
  }
  if (!sampler_) sampled = shape_of_results(shape.logit_rows, required.logprobs);
  cache_->end_step(stream_);
  return sampled;
}

kvcache::StepPlan ModelRunner::begin_cache_step(std::uint64_t number,
                                                std::span<const ScheduledRows> parts,
                                                bool may_capture) {
  sequences_.clear();
  in_batch_order(parts, [&](const ScheduledRows& part) {
    sequences_.push_back({.slot = part.slot,
                          .blocks = slots_[part.slot].blocks,
                          .first = part.first,
                          .rows = part.rows,
                          .resident = slots_[part.slot].resident,
                          .later_rows = part.later_rows});
  });
  return cache_->begin_step(
      {.number = number, .sequences = sequences_, .may_capture = may_capture, .starts = starts_},
      stream_);
}

layers::Sampled ModelRunner::run_as_graph(std::span<const ScheduledRows> parts, StepShape shape,
                                          std::uint64_t cache_graph_key,
                                          const layers::SampleStep& required) {
  const std::int64_t rows = shape.rows;
  DecodeGraphs::Kind kind = graphs_.kind_of(shape.sequences, shape.max_kv_length);
  kind.cache_graph_key = cache_graph_key;
  // Sampling with logprobs, which few requests use, would need a graph per number of alternatives.
  kind.samples = sampler_ && required.logprobs < 0;
  kind.penalties = kind.samples && required.penalties;
  kind.top_k_top_p = kind.samples && required.top_k_top_p;
  shape.sequences = shape.rows = shape.logit_rows = shape.decode_sequences = kind.sequences;
  shape.max_kv_length = kind.max_kv_length;
  shape.all_logits = true;
  load(parts, shape);
  graphs_.run(kind, stream_, [&] {
    const auto head = forward(shape);
    if (!head) return;
    if (!kind.samples) return head->run(*gemm_, stream_);
    tokens_ = sample(shape, kind.sequences, required, &*head).tokens;
  });
  if (!sampler_) return {};
  if (!kind.samples) return sample(shape, rows, required, nullptr);
  layers::Sampled sampled;
  sampled.tokens = TensorView(tokens_.data, tokens_.dtype, {rows});
  return sampled;
}

void ModelRunner::load(std::span<const ScheduledRows> parts, const StepShape& shape) {
  staging_.load(parts, slots_, shape, results_ ? results_->next_buffer() : 0, *cache_, stream_,
                peers_.communicator);
}

std::optional<layers::LogitsCall> ModelRunner::forward(const StepShape& shape) {
  staging_.make_input(shape, *cache_, stream_);
  layers::Batch batch = staging_.batch(shape);
  // The only sequence is in a single block, so kernels need no block table.
  if (options_.kv_mode == KvMode::contiguous) batch.block_table = {};
  return decoder_.forward_to_head(batch, *cache_, memory_, device());
}

// The sampling features that the step's rows require.
layers::SampleStep ModelRunner::required_sampling(std::span<const ScheduledRows> parts) {
  layers::SampleStep required;
  for (const ScheduledRows& part : parts) {
    const SlotSequence& sequence = slots_[part.slot];
    if (part.samples) {
      required.penalties |= sequence.penalties;
      required.top_k_top_p |= sequence.top_k_top_p;
      required.logprobs = std::max(required.logprobs, sequence.logprobs);
    }
    if (part.prompt_logprobs > 0)
      required.logprobs = std::max(required.logprobs, sequence.prompt_logprobs);
  }
  return required;
}

layers::Sampled ModelRunner::sample(const StepShape& shape, std::int64_t rows,
                                    const layers::SampleStep& required,
                                    const layers::LogitsCall* head) {
  layers::SampleStep step = staging_.sample_step(shape, rows, cache_->tokens());
  step.logits = memory_.logits(decoder_, rows);
  step.head = head;
  step.penalties = required.penalties;
  step.top_k_top_p = required.top_k_top_p;
  step.logprobs = required.logprobs;
  layers::Scratch no_scratch;
  const layers::Sampled sampled = sampler_->sample(
      step, staging_.last_tokens(), {stream_, *gemm_, no_scratch, peers_.communicator});
  if (results_) {
    kernels::copy_to_ring({.words = sampled.tokens,
                           .index = staging_.result_buffer(shape),
                           .ring = results_->buffers()},
                          stream_);
  }
  return sampled;
}

bool ModelRunner::result_ready() {
  return results_ && results_->ready();
}

StepResult ModelRunner::take_result() {
  NVLLM_CHECK(results_.has_value(), "this rank keeps no results");
  StepResult result = results_->take_oldest(stream_, peers_.communicator);
  timer_.collect();
  return result;
}

}  // namespace nvllm::runtime
