// Shared by the backends for each sampling operation: its arguments as plain pointers, and the
// steps for a row, with the arithmetic of sampling_math.h.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_math.h"

namespace nvllm::kernels {

// A step's rows as plain pointers, for kernels.
struct SamplingRowsView {
  const float* logits;
  const float* changed_logits;  // nullptr: in place
  const std::int32_t* slots;
  const std::int32_t* positions;
  const SlotParams* params;
  std::int64_t rows, own, stride, changed_stride;
  std::uint32_t first_id;

  SamplingRowsView() = default;
  explicit SamplingRowsView(const SamplingRows& args)
      : logits(args.logits.as<float>()),
        changed_logits(args.changed_logits.as<float>()),
        slots(args.slots.as<std::int32_t>()),
        positions(args.positions.as<std::int32_t>()),
        params(args.params.as<SlotParams>()),
        rows(args.rows()),
        own(args.own()),
        stride(args.logits.stride[0]),
        changed_stride(args.changed_logits.stride[0]),
        first_id(static_cast<std::uint32_t>(args.first_id)) {}

  // The logits of a row to sample from: the penalized ones if the slot's flags require that.
  NVLLM_HOST_DEVICE const float* sampled_logits(std::int64_t row, std::uint32_t flags) const {
    if (changed_logits != nullptr && (flags & SlotParams::kChangesLogits) != 0) {
      return changed_logits + row * changed_stride;
    }
    return logits + row * stride;
  }
};

// --- sampled tokens

// The destination of the rows' best candidates: they become tokens, or input of reduce_samples().
struct SampledTokens {
  const std::int32_t* targets;  // nullptr: -1
  std::int32_t* tokens;
  std::int32_t* last_tokens;
  unsigned long long* bests;  // nullptr: the rows are whole

  explicit SampledTokens(const SampleTokens& args)
      : targets(args.targets.as<std::int32_t>()),
        tokens(args.tokens.as<std::int32_t>()),
        last_tokens(args.last_tokens.as<std::int32_t>()),
        bests(args.best.as<unsigned long long>()) {}
  explicit SampledTokens(const ReduceSamples& args)
      : targets(args.targets.as<std::int32_t>()),
        tokens(args.tokens.as<std::int32_t>()),
        last_tokens(args.last_tokens.as<std::int32_t>()),
        bests(nullptr) {}

  NVLLM_HOST_DEVICE void set(std::int64_t row, std::int32_t slot, std::uint64_t best) const {
    if (bests != nullptr) {
      bests[row] = best;
    } else if (slot < 0) {
      tokens[row] = targets != nullptr ? targets[row] : -1;
    } else {
      tokens[row] = token_of(best);
      last_tokens[slot] = next_input(tokens[row]);
    }
  }

  // A candidate with NaN's key is no token.
  static NVLLM_HOST_DEVICE std::int32_t token_of(std::uint64_t best) {
    return best >> 32 == 0 ? kNoToken : static_cast<std::int32_t>(id_of_candidate(best));
  }
  // The input of the next step, which may be enqueued already.
  static NVLLM_HOST_DEVICE std::int32_t next_input(std::int32_t token) {
    return token == kNoToken ? 0 : token;
  }
};

// --- penalties

// The arguments as plain pointers, for the backends.
struct PenaltiesView {
  SamplingRowsView rows;
  const std::int32_t* lists;
  const std::uint32_t* allowed;
  const std::int32_t* history;
  const std::int32_t* block_table;
  std::int64_t list_words, allowed_words, block_size, table_stride;

  explicit PenaltiesView(const ApplyPenalties& args)
      : rows(args.rows),
        lists(args.lists.as<std::int32_t>()),
        allowed(args.allowed.as<std::uint32_t>()),
        history(args.history.as<std::int32_t>()),
        block_table(args.block_table.as<std::int32_t>()),
        list_words(args.lists.shape[1]),
        allowed_words(args.allowed.shape[1]),
        block_size(args.history.shape[1]),
        table_stride(args.block_table.stride[0]) {}
};

// The history of a row.
struct RowHistory {
  const std::int32_t* tokens;  // by blocks
  const std::int32_t* table;   // of this row
  std::int64_t block_size;

  NVLLM_HOST_DEVICE std::int32_t at(std::int64_t position) const {
    return tokens[table[position / block_size] * block_size + position % block_size];
  }
};

// The lists of a row's slot.
struct RowLists {
  const std::int32_t* ends;
  const std::int32_t* bias_ids;
  const float* biases;
  const std::int32_t* word_ends;
  const std::int32_t* word_tokens;

  NVLLM_HOST_DEVICE RowLists(const std::int32_t* words, const SlotParams& params)
      : ends(words),
        bias_ids(ends + params.ends),
        biases(reinterpret_cast<const float*>(bias_ids + params.biases)),
        word_ends(bias_ids + 2 * params.biases),
        word_tokens(word_ends + params.bad_words) {}

  // The token that would complete the bad word; -1: the history does not end with its other tokens.
  NVLLM_HOST_DEVICE std::int32_t banned_by(int word, const RowHistory& history,
                                           std::int64_t position) const {
    const std::int32_t begin = word == 0 ? 0 : word_ends[word - 1];
    const std::int32_t last = word_ends[word] - 1;
    const std::int64_t first_position = position - (last - begin);
    if (first_position < 0) return -1;
    for (std::int32_t i = begin; i < last; ++i) {
      if (history.at(first_position + (i - begin)) != word_tokens[i]) return -1;
    }
    return word_tokens[last];
  }
};

// The count of a token in the output, and a flag for its occurrence in the prompt.
inline constexpr std::uint32_t kInPrompt = 0x80000000u;

NVLLM_HOST_DEVICE float penalized(float logit, std::uint32_t seen, const SlotParams& params) {
  if (seen == 0) return logit;
  const float repetition = params.repetition_penalty;
  // Division by 1 is exact.
  logit = logit > 0 ? logit / repetition : logit * repetition;
  const std::uint32_t count = seen & ~kInPrompt;
  if (count == 0) return logit;
  logit = fused(-params.frequency_penalty, static_cast<float>(count), logit);
  return logit - params.presence_penalty;
}

// --- truncation by min_p, top_k and top_p

// The arguments as plain pointers, for the backends.
struct TruncationView {
  SamplingRowsView rows;
  std::uint32_t* maxima;
  const std::uint32_t* all_maxima;
  unsigned long long* histograms;
  const unsigned long long* all_histograms;
  TruncationState* state;
  float* thresholds;
  std::int64_t parts;

  explicit TruncationView(const TopKTopP& args)
      : rows(args.rows),
        maxima(args.maxima.as<std::uint32_t>()),
        all_maxima(args.all_maxima.as<std::uint32_t>()),
        histograms(args.histograms.as<unsigned long long>()),
        all_histograms(args.all_histograms.as<unsigned long long>()),
        state(args.state.as<TruncationState>()),
        thresholds(args.thresholds.as<float>()),
        parts(args.all_maxima.shape[0]) {}
};

NVLLM_HOST_DEVICE bool truncates(const SlotParams& params) {
  return (params.flags & SlotParams::kTruncates) != 0 && params.inverse_temperature != 0;
}

// The logarithm of the probability relative to the highest one.
NVLLM_HOST_DEVICE float distance(float logit, float maximum, const SlotParams& params) {
  return (logit - maximum) * params.inverse_temperature;
}

// The lowest key that min_p keeps.
NVLLM_HOST_DEVICE std::uint32_t min_p_threshold(float maximum, const SlotParams& params) {
  std::uint32_t kept = order_key(maximum), dropped = kLowestKey - 1;
  while (kept - dropped > 1) {
    const std::uint32_t middle = dropped + (kept - dropped) / 2;
    const bool keeps = distance(value_of_key(middle), maximum, params) >= params.log_min_p;
    (keeps ? kept : dropped) = middle;
  }
  return kept;
}

// The initial truncation state of a row, given the key of its highest logit.
NVLLM_HOST_DEVICE TruncationState initial_state(std::uint32_t maximum, const SlotParams& params) {
  TruncationState row;
  row.threshold = kLowestKey;
  if (!truncates(params)) return row;
  row.maximum = value_of_key(maximum);
  if (maximum <= kLowestKey || maximum >= kHighestKey) {
    // Infinite, or all NaN: only logits equal to the highest can be sampled.
    row.threshold = maximum < kLowestKey ? kLowestKey : maximum;
    return row;
  }
  row.active = 1;
  if (params.has_min_p != 0) row.threshold = min_p_threshold(row.maximum, params);
  return row;
}

// Whether a row participates in a round.
NVLLM_HOST_DEVICE bool takes_part(const TruncationState& row, const SlotParams& params,
                                  TruncationKind kind, int round) {
  const bool is_on = kind == TruncationKind::top_k ? params.top_k > 0 : params.top_p != 0;
  return is_on && row.active != 0 && (round == 0 || row.wanted != 0);
}

// The order keys that a round divides into bins.
struct KeyRange {
  std::uint32_t low, high;
  NVLLM_HOST_DEVICE bool holds(std::uint32_t key) const { return key >= low && key <= high; }
};
NVLLM_HOST_DEVICE KeyRange keys_of_round(const TruncationState& row, int round) {
  KeyRange keys{kLowestKey, kHighestKey};
  if (round > 0) {
    const int shift = truncation_shift(round - 1);
    keys.low = row.prefix << shift;
    keys.high = keys.low + ((std::uint32_t{1} << shift) - 1);
  }
  if (keys.low < row.threshold) keys.low = row.threshold;
  if (keys.high > kHighestKey) keys.high = kHighestKey;
  return keys;
}

// How much of the remaining `total` a row keeps; 0: all of it.
NVLLM_HOST_DEVICE std::uint64_t wanted_of(std::uint64_t total, const SlotParams& params,
                                          TruncationKind kind) {
  if (kind == TruncationKind::top_k) {
    const auto k = static_cast<std::uint64_t>(params.top_k);
    return total >= k ? k : 0;
  }
  const std::uint64_t share =
      (total >> 32) * params.top_p + ((total & 0xffffffffu) * params.top_p >> 32);
  return share > 0 ? share : 1;
}

// The row's state after a round whose boundary fell in `bin`, with `above` in the bins above it.
NVLLM_HOST_DEVICE TruncationState chosen(TruncationState row, std::uint32_t bin,
                                         std::uint64_t above, int round) {
  row.prefix = round == 0 ? bin : row.prefix << (round == 1 ? 11 : 10) | bin;
  row.wanted -= above;
  if (round == kTruncationRounds - 1) row.threshold = row.prefix;
  return row;
}

// --- log-probabilities

// The arguments as plain pointers, for the backends.
struct LogProbabilitiesView {
  SamplingRowsView rows;
  const std::int32_t* tokens;
  std::int32_t* records;
  std::int32_t* all_records;
  std::int32_t* higher;
  const std::int32_t* all_higher;
  float* logprob;
  std::int32_t* rank;
  std::int32_t* top_ids;
  float* top_logprobs;
  std::int64_t parts, alternatives;

  explicit LogProbabilitiesView(const LogProbabilities& args)
      : rows(args.rows),
        tokens(args.tokens.as<std::int32_t>()),
        records(args.records.as<std::int32_t>()),
        all_records(args.all_records.as<std::int32_t>()),
        higher(args.higher.as<std::int32_t>()),
        all_higher(args.all_higher.as<std::int32_t>()),
        logprob(args.logprob.as<float>()),
        rank(args.rank.as<std::int32_t>()),
        top_ids(args.top_ids.as<std::int32_t>()),
        top_logprobs(args.top_logprobs.as<float>()),
        parts(args.parts()),
        alternatives(args.alternatives()) {}
};

NVLLM_HOST_DEVICE bool wants_logprobs(const SamplingRowsView& rows, std::int64_t row,
                                      std::int32_t token) {
  if (token < 0) return false;
  return rows.slots[row] < 0 || rows.params[rows.slots[row]].logprobs >= 0;
}

// NaN becomes -infinity; zeros are equal.
NVLLM_HOST_DEVICE float plain_logit(float logit) {
  return value_of_key(order_key(logit));
}

// Equal infinities have distance 0.
NVLLM_HOST_DEVICE float logit_distance(float logit, float maximum) {
  return logit == maximum ? 0.0f : logit - maximum;
}

// A row's record (kernels/sampling/sampling.h).
struct RecordView {
  std::int32_t* words;
  std::int64_t alternatives;

  NVLLM_HOST_DEVICE float number(int i) const {
    return float_of_bits(static_cast<std::uint32_t>(words[i]));
  }
  NVLLM_HOST_DEVICE void set(int i, float value) const {
    words[i] = static_cast<std::int32_t>(bits_of_float(value));
  }
  NVLLM_HOST_DEVICE float max_logit() const { return number(0); }
  NVLLM_HOST_DEVICE float sum() const { return number(1); }
  NVLLM_HOST_DEVICE float token_logit() const { return number(2); }
  // Packed as by candidate(); 0: end.
  NVLLM_HOST_DEVICE std::uint64_t alternative(std::int64_t i) const {
    const std::int32_t id = words[3 + i];
    if (id < 0) return 0;
    return candidate(float_of_bits(static_cast<std::uint32_t>(words[3 + alternatives + i])),
                     static_cast<std::uint32_t>(id));
  }
  NVLLM_HOST_DEVICE void set_alternative(std::int64_t i, std::uint64_t value) const {
    words[3 + i] = value == 0 ? -1 : static_cast<std::int32_t>(id_of_candidate(value));
    words[3 + alternatives + i] =
        static_cast<std::int32_t>(bits_of_float(score_of_candidate(value)));
  }
};

// The records of one row from all parts.
struct RowRecords {
  std::int32_t* all;
  std::int64_t parts, rows, row, alternatives;

  NVLLM_HOST_DEVICE RecordView of(std::int64_t part) const {
    return {all + (part * rows + row) * logprob_record_words(alternatives), alternatives};
  }
  NVLLM_HOST_DEVICE float max_logit() const {
    float maximum = of(0).max_logit();
    for (std::int64_t part = 1; part < parts; ++part) {
      const float theirs = of(part).max_logit();
      maximum = theirs > maximum ? theirs : maximum;
    }
    return maximum;
  }
  NVLLM_HOST_DEVICE float token_logit() const {
    for (std::int64_t part = 0; part < parts; ++part) {
      const float logit = of(part).token_logit();
      if (logit == logit) return logit;
    }
    return kMinusInfinity;
  }
};

}  // namespace nvllm::kernels
