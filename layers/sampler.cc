#include "layers/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "kernels/pointwise/copy.h"
#include "kernels/sampling/sampling.h"

namespace nvllm::layers {
namespace {

using kernels::SlotParams;

// Rows for which truncation or log-probabilities are computed at once; bounds their memory.
constexpr std::int64_t kPieceRows = 256;
// The same where the rules' changed logits need a copy, since log-probabilities are of the raw
// ones.
constexpr std::int64_t kCopiedRows = 32;

TensorView rows_of(const TensorView& tensor, Range rows) {
  return tensor.rows(rows.begin, rows.size());
}

std::int64_t bitmap_words(std::int64_t bits) {
  return (bits + 31) / 32;
}

// Upper bound of the vocabulary parts that a rank summarizes separately for log-probabilities: one,
// or, where sums must not depend on the number of ranks, one per segment.
std::int64_t max_parts_of(Shard shard) {
  if (!shard.tp_invariant) return 1;
  shard.rank = 0;  // rank 0 has the most
  return even_part_of(kMaxSegments, shard).size();
}

// The ids of part `part` on rank `shard`; may be empty.
Range part_of_rank(Range own, std::int64_t part, std::int64_t vocabulary, Shard shard) {
  if (!shard.tp_invariant) return own;
  const Range segments = even_part_of(kMaxSegments, shard);
  if (part >= segments.size()) return {own.end, own.end};
  return vocabulary_segment(vocabulary, segments.begin + part);
}

constexpr float kMinTemperature = 1e-5f;

bool is_random(const SamplingRules& rules) {
  return rules.temperature >= kMinTemperature;
}

bool penalizes(const SamplingRules& rules) {
  return rules.repetition_penalty != 1 || rules.presence_penalty != 0 ||
         rules.frequency_penalty != 0;
}

std::uint32_t fixed_share(float share) {
  if (!(share < 1)) return 0;
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(std::max(share, 0.0f) * 0x1p32f));
}

// A sequence's rules as kernels read them, except for the lists.
SlotParams slot_rules(const SamplingRules& rules) {
  SlotParams slot;
  slot.seed = rules.seed;
  slot.inverse_temperature = is_random(rules) ? 1 / rules.temperature : 0;
  slot.has_min_p = rules.min_p > 0;
  slot.log_min_p = rules.min_p > 0 ? std::log(rules.min_p) : 0;
  slot.top_k = std::max(rules.top_k, 0);
  slot.top_p = fixed_share(rules.top_p);
  slot.flags = (rules.changes_logits() ? SlotParams::kChangesLogits : 0) |
               (rules.truncates() ? SlotParams::kTruncates : 0) |
               (rules.allowed.empty() ? 0 : SlotParams::kAllowed) |
               (penalizes(rules) ? SlotParams::kPenalties : 0);
  slot.repetition_penalty = rules.repetition_penalty;
  slot.presence_penalty = rules.presence_penalty;
  slot.frequency_penalty = rules.frequency_penalty;
  slot.prompt_length = rules.prompt_length;
  slot.min_length = rules.min_length;
  slot.logprobs = rules.logprobs;
  return slot;
}

// Appends the lists (kernels/sampling/sampling.h) and stores their lengths in `slot`.
void append_lists(const SamplingRules& rules, SlotParams& slot, std::vector<std::uint32_t>& words) {
  const auto append = [&](std::int64_t word) {
    words.push_back(static_cast<std::uint32_t>(word));
    return 1;
  };
  for (const std::int32_t end : rules.ends) slot.ends += append(end);
  std::map<std::int32_t, float> bias;  // one entry per id
  for (const auto& entry : rules.bias) bias[entry.first] += entry.second;
  for (const auto& entry : bias) slot.biases += append(entry.first);
  for (const auto& entry : bias) append(std::bit_cast<std::uint32_t>(entry.second));
  for (const auto& word : rules.bad_words) {
    if (word.empty()) continue;
    slot.bad_tokens += static_cast<std::int32_t>(word.size());
    slot.bad_words += append(slot.bad_tokens);
  }
  for (const auto& word : rules.bad_words) {
    for (const std::int32_t token : word) append(token);
  }
}

}  // namespace

bool SamplingRules::changes_logits() const {
  return penalizes(*this) || !bias.empty() || !allowed.empty() || !bad_words.empty() ||
         (!ends.empty() && min_length > prompt_length);
}

bool SamplingRules::truncates() const {
  return is_random(*this) && (min_p > 0 || top_k > 0 || top_p < 1);
}

std::int64_t list_words(const SamplingRules& rules) {
  std::size_t words = rules.ends.size() + 2 * rules.bias.size();
  for (const auto& word : rules.bad_words) words += word.size() + 1;
  return static_cast<std::int64_t>(words);
}

// The sampler's device memory. Tensors that ranks exchange are [ranks, rows, ...]: the parts of all
// ranks, including this rank's own.
struct Sampler::Memory {
  struct Sizes {
    Shard shard;
    std::int64_t stride, slots, rows, piece_rows, copied_rows, max_logprobs;
    std::int64_t summaries;  // per row: the parts of all ranks

    Sizes(std::int64_t stride, Shard shard, const SamplerLimits& limits)
        : shard(shard),
          stride(stride),
          slots(limits.slots),
          rows(limits.rows),
          piece_rows(std::min(limits.rows, kPieceRows)),
          copied_rows(std::min(limits.rows, kCopiedRows)),
          max_logprobs(limits.max_logprobs),
          summaries(shard.ranks * max_parts_of(shard)) {}
  };

  // Allocates from one piece of memory, or, if that is nullptr, only counts bytes.
  class Places {
   public:
    explicit Places(void* data) : data_(static_cast<std::byte*>(data)) {}
    TensorView allocate(DType dtype, std::int64_t rows, std::int64_t columns) {
      const TensorView tensor(data_ != nullptr ? data_ + used_ : nullptr, dtype, {rows, columns});
      used_ += Scratch::bytes_of(dtype, rows, columns);
      return tensor;
    }
    std::size_t used() const { return used_; }

   private:
    std::byte* data_;
    std::size_t used_ = 0;
  };

  Memory(const Sizes& sizes, Places& places);

  // Views of `rows` rows of an exchanged tensor: of all ranks, and of this one.
  struct Exchange {
    TensorView all, own;

    Exchange(const TensorView& memory, Shard shard, std::int64_t rows, std::int64_t columns)
        : all(memory.data, memory.dtype, {shard.ranks, rows, columns}),
          own(memory.as<char>() +
                  static_cast<std::size_t>(shard.rank * rows * columns) * size_of(memory.dtype),
              memory.dtype, {rows, columns}) {}

    void with_all_ranks(const Context& context) const {
      if (!context.alone()) context.communicator->all_gather(all, own, context.stream);
    }
    // The same without the column dimension.
    TensorView all_flat() const { return {all.data, all.dtype, {all.shape[0], all.shape[1]}}; }
    TensorView own_flat() const { return {own.data, own.dtype, {own.shape[0]}}; }
  };

  Buffer buffer;
  TensorView rules, lists, allowed;                                 // by slot
  TensorView tokens, logprob, rank, top_ids, top_logprobs;          // results, by row
  TensorView sample_scratch, histograms, maxima, truncation_state;  // zero before first use
  TensorView bests, thresholds, records, higher;
  TensorView gathered_histograms, gathered_maxima;  // with one rank these alias the tensors above
  TensorView changed_logits;
};

Sampler::Memory::Memory(const Sizes& sizes, Places& places) {
  const std::int64_t ranks = sizes.shard.ranks, rows = sizes.rows, pieces = sizes.piece_rows;
  rules = places.allocate(DType::u8, sizes.slots, sizeof(SlotParams));
  lists = places.allocate(DType::i32, sizes.slots, SamplerLimits::kListWords);
  allowed = places.allocate(DType::i32, sizes.slots, bitmap_words(sizes.stride));
  tokens = places.allocate(DType::i32, 1, rows);
  logprob = places.allocate(DType::f32, 1, rows);
  rank = places.allocate(DType::i32, 1, rows);
  top_ids = places.allocate(DType::i32, rows, sizes.max_logprobs);
  top_logprobs = places.allocate(DType::f32, rows, sizes.max_logprobs);
  sample_scratch = places.allocate(DType::i64, 1, kernels::sample_scratch_words(rows));
  histograms = places.allocate(DType::i64, pieces, kernels::kTruncationBins);
  bests = places.allocate(DType::i64, ranks, rows);
  maxima = places.allocate(DType::i32, 1, pieces);
  truncation_state = places.allocate(DType::u8, pieces, sizeof(kernels::TruncationState));
  thresholds = places.allocate(DType::f32, 1, pieces);
  records = places.allocate(DType::i32, sizes.summaries * pieces,
                            kernels::logprob_record_words(sizes.max_logprobs));
  higher = places.allocate(DType::i32, sizes.summaries, pieces);
  gathered_histograms = ranks == 1
                            ? histograms
                            : places.allocate(DType::i64, ranks * pieces, kernels::kTruncationBins);
  gathered_maxima = ranks == 1 ? maxima : places.allocate(DType::i32, ranks, pieces);
  changed_logits = places.allocate(DType::f32, sizes.copied_rows, sizes.stride);
}

// Rows of a step that are processed together.
struct Sampler::Piece {
  const SampleStep& step;
  const Context& context;
  TensorView last_tokens;
  Range range;  // of the step's rows
  kernels::SamplingRows rows;
  TensorView targets, tokens;
  const LogitsCall* head;  // computes the logits, if only tokens are needed
};

Sampler::Sampler(Range own, std::int64_t stride, std::int64_t vocabulary, Shard shard,
                 const SamplerLimits& limits, Backend& backend)
    : own_(own), vocabulary_(vocabulary), shard_(shard), limits_(limits), memory_([&] {
        NVLLM_CHECK(own.size() <= stride && own.end <= vocabulary, "no part of the vocabulary");
        NVLLM_CHECK(limits.max_logprobs <= kernels::kMaxAlternatives, "too many alternatives");
        Buffer buffer =
            backend.allocate(MemoryKind::device, bytes(stride, shard, limits), "sampler");
        Memory::Places places(buffer.data());
        auto memory = std::make_unique<Memory>(Memory::Sizes(stride, shard, limits), places);
        memory->buffer = std::move(buffer);
        return memory;
      }()) {
  const auto stream = backend.create_stream();
  for (const TensorView& zeros : {memory_->rules, memory_->sample_scratch, memory_->histograms,
                                  memory_->maxima, memory_->truncation_state}) {
    backend.fill(zeros.data, 0, zeros.bytes(), *stream);
  }
  stream->synchronize();
}

Sampler::~Sampler() = default;

std::size_t Sampler::bytes(std::int64_t stride, Shard shard, const SamplerLimits& limits) {
  Memory::Places places(nullptr);
  const Memory memory(Memory::Sizes(stride, shard, limits), places);
  return places.used();
}

void Sampler::set(std::int64_t slot, const SamplingRules& rules, Stream& stream) {
  NVLLM_CHECK(slot >= 0 && slot < limits_.slots, "no such slot");
  NVLLM_CHECK(list_words(rules) <= SamplerLimits::kListWords, "lists too long");
  const auto place = [&](const TensorView& tensor) {
    return rows_of(tensor, {slot, slot + 1}).as<std::uint32_t>();
  };
  SlotParams device = slot_rules(rules);
  words_.clear();
  append_lists(rules, device, words_);
  const auto count = static_cast<std::int64_t>(words_.size());
  kernels::write_words(place(memory_->lists), words_.data(), count, stream);

  std::uint32_t header[sizeof(SlotParams) / sizeof(std::uint32_t)];
  std::memcpy(header, &device, sizeof(SlotParams));
  kernels::write_words(place(memory_->rules), header, std::size(header), stream);

  if (rules.allowed.empty()) return;
  words_.assign(bitmap_words(own_.size()), 0);
  for (const std::int32_t id : rules.allowed) {
    const std::int64_t i = id - own_.begin;
    if (i >= 0 && i < own_.size()) words_[i / 32] |= std::uint32_t{1} << i % 32;
  }
  kernels::write_words(place(memory_->allowed), words_.data(), bitmap_words(own_.size()), stream);
}

void Sampler::apply_penalties(const Piece& piece) const {
  kernels::apply_penalties({.rows = piece.rows,
                            .lists = memory_->lists,
                            .allowed = memory_->allowed,
                            .history = piece.step.history,
                            .block_table = rows_of(piece.step.block_table, piece.range)},
                           piece.context.stream);
}

void Sampler::top_k_top_p(const Piece& piece) const {
  Stream& stream = piece.context.stream;
  const std::int64_t rows = piece.range.size();
  const TensorView maxima(memory_->maxima.data, DType::i32, {rows});
  const TensorView all_maxima(memory_->gathered_maxima.data, DType::i32, {shard_.ranks, rows});
  const TensorView histograms = rows_of(memory_->histograms, {0, rows});
  const TensorView all_histograms(memory_->gathered_histograms.data, DType::i64,
                                  {shard_.ranks, rows, kernels::kTruncationBins});
  const kernels::TopKTopP args{.rows = piece.rows,
                               .maxima = maxima,
                               .all_maxima = all_maxima,
                               .histograms = histograms,
                               .all_histograms = all_histograms,
                               .state = rows_of(memory_->truncation_state, {0, rows}),
                               .thresholds = {memory_->thresholds.data, DType::f32, {rows}}};
  if (piece.context.alone()) return kernels::top_k_top_p(args, stream);
  kernels::find_maximum(args, stream);
  piece.context.communicator->all_gather(all_maxima, maxima, stream);
  kernels::begin_truncation(args, stream);
  for (const auto kind : {kernels::TruncationKind::top_k, kernels::TruncationKind::top_p}) {
    for (int round = 0; round < kernels::kTruncationRounds; ++round) {
      kernels::count_truncation_round(args, kind, round, stream);
      piece.context.communicator->all_gather(all_histograms, histograms, stream);
      kernels::choose_truncation_round(args, kind, round, stream);
    }
  }
}

void Sampler::sample_tokens(const Piece& piece) const {
  const std::int64_t rows = piece.range.size();
  kernels::SampleTokens args{
      .rows = piece.rows,
      .targets = piece.targets,
      .scratch = {memory_->sample_scratch.data, DType::i64, {kernels::sample_scratch_words(rows)}},
      .tokens = piece.tokens,
      .last_tokens = piece.last_tokens};
  if (piece.step.top_k_top_p) args.thresholds = {memory_->thresholds.data, DType::f32, {rows}};
  const auto enqueue = [&] {
    kernels::Gemm& gemm = piece.context.gemm;
    Stream& stream = piece.context.stream;
    if (piece.head != nullptr) {
      if (piece.head->gemm.plan.samples && kernels::samples_in_epilogue(args)) {
        return gemm.run_and_sample(piece.head->gemm, args, stream);
      }
      piece.head->run(gemm, stream);
    }
    kernels::sample_tokens(args, stream);
  };
  if (piece.context.alone()) return enqueue();

  const Memory::Exchange bests(memory_->bests, shard_, rows, 1);
  args.best = bests.own_flat();
  enqueue();
  bests.with_all_ranks(piece.context);
  kernels::reduce_samples({.bests = bests.all_flat(),
                           .slots = piece.rows.slots,
                           .targets = piece.targets,
                           .tokens = piece.tokens,
                           .last_tokens = piece.last_tokens},
                          piece.context.stream);
}

void Sampler::log_probabilities(const Piece& piece) const {
  const std::int64_t rows = piece.range.size(), alternatives = piece.step.logprobs;
  const std::int64_t parts = max_parts_of(shard_),
                     words = kernels::logprob_record_words(alternatives);
  const Memory::Exchange records(memory_->records, shard_, parts * rows, words);
  const Memory::Exchange higher(memory_->higher, shard_, rows, 1);
  const auto results = [&](const TensorView& memory, std::int64_t columns) {
    return rows_of(TensorView(memory.data, memory.dtype, {limits_.rows, columns}), piece.range);
  };
  const auto flat = [&](const TensorView& memory) {
    return TensorView(memory.as<std::int32_t>() + piece.range.begin, memory.dtype, {rows});
  };
  kernels::LogProbabilities args{
      .rows = piece.rows,
      .tokens = piece.tokens,
      .records = rows_of(records.own, {0, rows}),
      .all_records = {records.all.data, DType::i32, {shard_.ranks * parts, rows, words}},
      .higher = higher.own_flat(),
      .all_higher = {memory_->higher.data, DType::i32, {shard_.ranks * parts, rows}},
      .logprob = flat(memory_->logprob),
      .rank = flat(memory_->rank),
      .top_ids = results(memory_->top_ids, alternatives),
      .top_logprobs = results(memory_->top_logprobs, alternatives)};
  Stream& stream = piece.context.stream;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range ids = part_of_rank(own_, part, vocabulary_, shard_);
    kernels::LogProbabilities of_part = args;
    of_part.rows.logits = columns_of(args.rows.logits, ids.begin - own_.begin, ids.size());
    of_part.rows.changed_logits = {};  // log-probabilities are of the raw logits
    of_part.rows.first_id = ids.begin;
    of_part.records = rows_of(records.own, {part * rows, (part + 1) * rows});
    kernels::summarize_logits(of_part, stream);
  }
  records.with_all_ranks(piece.context);
  kernels::log_probabilities(args, stream);
  if (shard_.ranks * parts == 1) return;
  // From here on each rank counts once, with all its parts.
  higher.with_all_ranks(piece.context);
  args.all_records.shape[0] = shard_.ranks;
  args.all_higher.shape[0] = shard_.ranks;
  kernels::rank_tokens(args, stream);
}

Sampled Sampler::sample(const SampleStep& step, TensorView last_tokens, const Context& context) {
  const std::int64_t rows = step.rows();
  const bool logprobs = step.logprobs >= 0;
  NVLLM_CHECK(rows <= limits_.rows, "more rows than the sampler was made for");
  NVLLM_CHECK(step.logprobs <= limits_.max_logprobs, "more logprobs than the sampler was made for");
  const bool copies = step.penalties && logprobs;
  const std::int64_t at_once = copies                         ? kCopiedRows
                               : logprobs || step.top_k_top_p ? kPieceRows
                                                              : std::max<std::int64_t>(rows, 1);

  const bool samples_only = !step.penalties && !step.top_k_top_p && !logprobs;  // all rows at once
  if (step.head != nullptr && !samples_only) step.head->run(context.gemm, context.stream);
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const Range range{begin, std::min(begin + at_once, rows)};
    Piece piece{
        .step = step,
        .context = context,
        .last_tokens = last_tokens,
        .range = range,
        .rows = {.logits = rows_of(step.logits, range),
                 .slots = rows_of(step.slots, range),
                 .positions = rows_of(step.positions, range),
                 .params = memory_->rules,
                 .first_id = own_.begin},
        .targets = step.targets.data != nullptr ? rows_of(step.targets, range) : step.targets,
        .tokens = {memory_->tokens.as<std::int32_t>() + range.begin, DType::i32, {range.size()}},
        .head = samples_only ? step.head : nullptr};
    if (copies) {
      piece.rows.changed_logits = rows_of(memory_->changed_logits, {0, range.size()});
      piece.rows.changed_logits.shape[1] = own_.size();
    }
    if (step.penalties) apply_penalties(piece);
    if (step.top_k_top_p) top_k_top_p(piece);
    sample_tokens(piece);
    if (logprobs) log_probabilities(piece);
  }

  Sampled sampled;
  sampled.tokens = {memory_->tokens.data, DType::i32, {rows}};
  if (!logprobs) return sampled;
  sampled.logprob = {memory_->logprob.data, DType::f32, {rows}};
  sampled.rank = {memory_->rank.data, DType::i32, {rows}};
  sampled.top_ids = {memory_->top_ids.data, DType::i32, {rows, step.logprobs}};
  sampled.top_logprobs = {memory_->top_logprobs.data, DType::f32, {rows, step.logprobs}};
  return sampled;
}

}  // namespace nvllm::layers
