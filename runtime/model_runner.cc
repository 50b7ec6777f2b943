#include "runtime/model_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "base/logging.h"
#include "base/text.h"
#include "device/topology.h"
#include "kernels/copy_to_place.h"
#include "kernels/linear.h"
#include "kvcache/chunked_cache.h"
#include "kvcache/layerwise_storage.h"
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

std::size_t results_bytes(const RunnerOptions& options) {
  return options.keeps_results
             ? StepResults::bytes(sampler_limits(options).rows, options.steps_ahead + 1)
             : 0;
}

std::size_t rope_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  return static_cast<std::size_t>(options.max_model_len * decoder.config().head_dim) *
         sizeof(float);
}

// On the CPU the products of many rows keep a copy of their inputs, in float32, from when they first come.
std::size_t packed_bytes(const model::Decoder& decoder, const RunnerOptions& options) {
  const model::ModelConfig& config = decoder.config();
  const std::int64_t inputs =
      std::max({config.hidden_size, decoder.heads().q.size() * config.head_dim,
                divide_up(config.intermediate_size, decoder.shard().ranks)});
  constexpr std::int64_t kPadding = 64;  // of rows and inputs, at most
  return static_cast<std::size_t>((decoder_limits(options).rows_at_once() + kPadding) *
                                  (inputs + kPadding)) *
         sizeof(float);
}

void tell(const kvcache::HostAttention::Speeds& speeds) {
  const auto rate = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  log_info("attention in host memory: cores read ", rate(speeds.cores), " a second, while ",
           rate(speeds.link), " go to the device; the cores' share is ",
           std::lround(100 * speeds.share()), "%");
}

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
        sparse(backend, options.sparse, sparse_limits(decoder, options, backend.kind())) {
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
  SparseAttention sparse;
  std::unique_ptr<kvcache::KvCache> storage;  // of a sparse cache
  std::optional<StepResults> results;
  std::unique_ptr<kvcache::KvCache> cache;
  kvcache::PagedStorage* paged = nullptr;        // if it is the cache: sequences can be swapped
  std::vector<kvcache::StepSequence> sequences;  // of the step; kept for its memory
  bool starts = false;                           // a sequence, with this step

  TensorView tokens;  // where the sampler leaves what it draws, in every step

  kvcache::ChunkedOptions chunked_options(std::int64_t blocks, std::int64_t device_slots,
                                          bool all_stay) {
    const StagingLimits limits = staging_limits(options);
    return {.blocks = blocks,
            .device_slots = device_slots,
            .all_stay = all_stay,
            .ring_slots = options.ring_slots,
            .sequences = limits.slots,
            .rows = limits.rows,
            .heads = decoder.heads().q.size(),
            .steps_ahead = options.steps_ahead,
            .quest = decodes_by_quest(),
            .prompts = sparse.prompts(),
            .least_tokens = sparse.least_tokens(),
            .tokens = options.max_model_len,
            .host_share = options.host_attention,
            .host_threads = host_threads(),
            .hooks = options.offload_hooks};
  }
  bool decodes_by_quest() const { return options.sparse.decode == DecodeAttention::quest; }
  // Of a cache that is on the device, all of it or by layers.
  template <typename Storage>
  void use(std::unique_ptr<Storage> own, const kvcache::BlockShape& shape, std::int64_t blocks) {
    if (options.sparse.any()) {
      cache = sparse.wrap(*own, shape, blocks, stream);
      storage = std::move(own);
    } else {
      cache = std::move(own);
    }
  }
  int host_threads() const;
  void follow(const StepMessage& message);
  kvcache::StepPlan begin_cache_step(std::uint64_t number, std::span<const StepPart> parts,
                                     bool may_repeat);
  layers::Sampled run(std::uint64_t number, std::span<const StepPart> parts);
  layers::Sampled run_as_graph(std::span<const StepPart> parts, StepShape shape,
                               std::uint64_t cache_work, const layers::SampleStep& wishes);
  void load(std::span<const StepPart> parts, const StepShape& shape);
  void forward(const StepShape& shape);
  layers::SampleStep wishes_of(std::span<const StepPart> parts);
  layers::Sampled sample(const StepShape& shape, std::int64_t rows,
                         const layers::SampleStep& wishes);
};

// By default the ranks of GPUs, which may all be near the same cores, share them; those of the CPU have done so.
int ModelRunner::State::host_threads() const {
  if (options.host_threads > 0) return static_cast<int>(options.host_threads);
  const int ranks = backend.kind() == DeviceKind::cpu ? 1 : decoder.shard().ranks;
  return std::max(1, static_cast<int>(allowed_cores().size()) / ranks);
}

// What a step changes beside its rows, in the message's order.
void ModelRunner::State::follow(const StepMessage& message) {
  slots.follow(message);
  for (const std::uint32_t slot : message.ended) cache->end_sequence(slot);
  NVLLM_CHECK(paged != nullptr || (message.swap_out.empty() && message.swap_in.empty()));
  if (!message.swap_out.empty()) paged->swap_out(message.swap_out, stream);
  if (!message.swap_in.empty()) paged->swap_in(message.swap_in, stream);
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
    forward(shape);
    if (shape.logit_rows > 0) sampled = sample(shape, shape.logit_rows, wishes);
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
    forward(shape);
    if (kind.draws) tokens = sample(shape, kind.sequences, wishes).tokens;
  });
  if (!kind.draws) return sample(shape, rows, wishes);
  layers::Sampled sampled;
  sampled.tokens = TensorView(tokens.data, tokens.dtype, {rows});
  return sampled;
}

void ModelRunner::State::load(std::span<const StepPart> parts, const StepShape& shape) {
  staging.load(parts, slots, shape, results ? results->place() : 0, *cache, stream, communicator);
}

void ModelRunner::State::forward(const StepShape& shape) {
  kernels::step_input(staging.input(shape, *cache), stream);
  layers::Batch batch = staging.batch(shape);
  // Kernels need not look up where the one sequence lies.
  if (options.kv_mode == KvMode::contiguous) batch.block_table = {};
  decoder.forward(batch, *cache, memory, {stream, *matmul, communicator, progress});
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
                                           const layers::SampleStep& wishes) {
  layers::SampleStep step = staging.sample_step(shape, rows, cache->tokens());
  step.logits = memory.logits(decoder, rows);
  step.adjust = wishes.adjust;
  step.filter = wishes.filter;
  step.logprobs = wishes.logprobs;
  layers::Scratch no_scratch;
  const layers::Sampled sampled =
      sampler.sample(step, staging.last_tokens(), {stream, *matmul, no_scratch, communicator});
  if (results) {
    kernels::copy_to_place(
        {.words = sampled.tokens, .place = staging.results(shape), .places = results->places()},
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

std::size_t ModelRunner::workspace_bytes(const model::Decoder& decoder,
                                         const RunnerOptions& options, DeviceKind device) {
  return model::DecoderMemory::bytes(decoder, decoder_limits(options)) +
         rope_bytes(decoder, options) +
         layers::Sampler::bytes(decoder.head().stride(), decoder.config().vocab_size,
                                decoder.shard(), sampler_limits(options)) +
         StepStaging::bytes(staging_limits(options)) + results_bytes(options) +
         kernels::matmul_bytes(device) +
         SparseAttention::prompt_bytes(options.sparse, sparse_limits(decoder, options, device));
}

std::size_t ModelRunner::graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                                     DeviceKind device) {
  if (device == DeviceKind::cpu) return packed_bytes(decoder, options);
  if (!options.graphs) return 0;
  // What a driver takes for an instantiated graph: its kernels' parameters and launch descriptions.
  constexpr std::size_t kGraph = 64 << 10, kNode = 2 << 10;
  constexpr std::int64_t kLayerNodes = 12, kOtherNodes = 64;
  const std::int64_t nodes = decoder.config().layers * kLayerNodes + kOtherNodes;
  const std::int64_t graphs = DecodeGraphs::most(options.max_num_seqs, options.max_model_len);
  return static_cast<std::size_t>(graphs) * (kGraph + static_cast<std::size_t>(nodes) * kNode);
}

kvcache::BlockShape ModelRunner::block_shape() const {
  const model::Decoder& decoder = state_->decoder;
  return {.layers = decoder.config().layers,
          .block_size = state_->options.block_size,
          .kv_heads = decoder.heads().kv.size(),
          .head_dim = decoder.config().head_dim,
          .dtype = decoder.dtype()};
}

ModelRunner::CacheBytes ModelRunner::cache_bytes() const {
  const kvcache::BlockShape shape = block_shape();
  if (state_->options.kv_mode == KvMode::layerwise) {
    return {.block = kvcache::LayerwiseStorage::device_bytes(shape, state_->options.kv_buffers,
                                                             state_->decodes_by_quest()) +
                     state_->sparse.block_bytes(shape),
            .host_block = kvcache::LayerwiseStorage::host_bytes(shape),
            .fixed = state_->sparse.fixed_bytes(shape, true)};
  }
  if (state_->options.kv_mode != KvMode::chunked) {
    return {.block = shape.bytes() + state_->sparse.block_bytes(shape),
            .fixed = state_->sparse.fixed_bytes(shape)};
  }
  return {.block = kvcache::ChunkedCache::device_bytes_per_block(shape, state_->decodes_by_quest()),
          .host_block = shape.kv_bytes(),
          .fixed = kvcache::ChunkedCache::device_bytes(shape, state_->chunked_options(0, 0, false)),
          .device_slot = shape.kv_bytes() + static_cast<std::size_t>(state_->options.max_num_seqs) *
                                                sizeof(std::int32_t)};
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
  NVLLM_CHECK(!state_->cache, "there is a cache already");
  if (state_->options.kv_mode == KvMode::layerwise) {
    auto layerwise = std::make_unique<kvcache::LayerwiseStorage>(state_->backend, block_shape(),
                                                                 blocks, state_->options.kv_buffers,
                                                                 0, state_->decodes_by_quest());
    return state_->use(std::move(layerwise), block_shape(), blocks);
  }
  if (state_->options.kv_mode == KvMode::chunked) {
    NVLLM_CHECK_EQ(host_blocks, 0);
    auto chunked = std::make_unique<kvcache::ChunkedCache>(
        state_->backend, block_shape(), state_->chunked_options(blocks, device_slots, all_stay));
    if (const auto& speeds = chunked->host_speeds()) tell(*speeds);
    state_->cache = std::move(chunked);
    return;
  }
  auto paged =
      std::make_unique<kvcache::PagedStorage>(state_->backend, block_shape(), blocks, host_blocks);
  state_->paged = paged.get();
  state_->use(std::move(paged), block_shape(), blocks);
}

void ModelRunner::step(const StepMessage& message) {
  State& state = *state_;
  NVLLM_CHECK(state.cache != nullptr, "a step before make_cache()");
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
  return state_->cache ? state_->cache->traffic() : kvcache::KvTraffic{};
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
