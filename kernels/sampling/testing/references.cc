#include "kernels/sampling/testing/references.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels {
namespace {

std::uint64_t best_of_row(const SamplingRowsView& rows, std::int64_t row, float threshold) {
  const SlotParams& params = rows.params[rows.slots[row]];
  const float* logits = rows.sampled_logits(row, params.flags);
  const RandomKeys noise = noise_keys(params.seed, rows.positions[row]);
  std::uint64_t best = 0;
  for (std::int64_t i = 0; i < rows.own; ++i) {
    const std::uint32_t id = rows.first_id + static_cast<std::uint32_t>(i);
    float score = logits[i];
    if (params.inverse_temperature != 0) {
      if (!(score >= threshold)) continue;
      score = fused(score, params.inverse_temperature, gumbel(noise.bits(id)));
    }
    best = std::max(best, candidate(score, id));
  }
  return best;
}

// The threshold of whole rows, from their keys in falling order without NaN.
std::uint32_t threshold_of(const std::vector<std::uint32_t>& keys, const SlotParams& params) {
  const TruncationState row = initial_state(keys.empty() ? 0 : keys.front(), params);
  if (row.active == 0) return row.threshold;
  std::size_t kept = 0;
  while (kept < keys.size() && keys[kept] >= row.threshold) ++kept;
  const auto with_equals = [&](std::size_t count) {
    while (count < kept && keys[count] == keys[count - 1]) ++count;
    return count;
  };
  std::uint32_t threshold = row.threshold;
  const auto k = static_cast<std::size_t>(params.top_k);
  if (params.top_k > 0 && k <= kept) {
    kept = with_equals(k);
    threshold = keys[kept - 1];
  }
  if (params.top_p == 0) return threshold;
  const auto mass = [&](std::size_t i) {
    return mass_of(distance(value_of_key(keys[i]), row.maximum, params));
  };
  std::uint64_t total = 0, sum = 0;
  for (std::size_t i = 0; i < kept; ++i) total += mass(i);
  const std::uint64_t wanted = wanted_of(total, params, TruncationKind::top_p);
  for (std::size_t i = 0; i < kept; ++i) {
    sum += mass(i);
    if (sum >= wanted) return keys[i];
  }
  return threshold;
}

}  // namespace

void apply_penalties_reference(const ApplyPenalties& args) {
  check_apply_penalties(args);
  const SamplingRowsView rows(args.rows);
  const std::int64_t block_size = args.history.shape[1];
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t slot = rows.slots[row];
    if (slot < 0 || (rows.params[slot].flags & SlotParams::kChangesLogits) == 0) continue;
    const SlotParams& params = rows.params[slot];
    const std::int32_t* words = args.lists.as<std::int32_t>() + slot * args.lists.shape[1];
    const auto* allowed = args.allowed.as<std::uint32_t>() + slot * args.allowed.shape[1];
    const std::int64_t position = rows.positions[row];

    std::map<std::int64_t, std::int64_t> in_prompt, in_answer;  // how often
    std::vector<std::int32_t> history;
    for (std::int64_t i = 0; i < position; ++i) {
      const std::int32_t block =
          args.block_table.as<std::int32_t>()[row * args.block_table.stride[0] + i / block_size];
      history.push_back(args.history.as<std::int32_t>()[block * block_size + i % block_size]);
      ++(i < params.prompt_length ? in_prompt : in_answer)[history.back()];
    }

    std::vector<bool> out(rows.own, false);
    const auto ban = [&](std::int64_t id) {
      if (id >= rows.first_id && id < rows.first_id + rows.own) out[id - rows.first_id] = true;
    };
    const std::int32_t* word = words;
    for (int i = 0; i < params.ends; ++i) {
      if (position < params.min_length) ban(word[i]);
    }
    word += params.ends;
    std::map<std::int64_t, float> bias;
    for (int i = 0; i < params.biases; ++i) {
      bias[word[i]] = float_of_bits(static_cast<std::uint32_t>(word[params.biases + i]));
    }
    word += 2 * params.biases;
    const std::int32_t* tokens = word + params.bad_words;
    std::int32_t begin = 0;
    for (int i = 0; i < params.bad_words; begin = word[i++]) {
      const std::int32_t before = word[i] - begin - 1;
      if (before <= position &&
          std::equal(tokens + begin, tokens + begin + before, history.end() - before)) {
        ban(tokens[word[i] - 1]);
      }
    }

    const float* from = rows.logits + row * rows.stride;
    auto* to = const_cast<float*>(rows.sampled_logits(row, params.flags));
    for (std::int64_t i = 0; i < rows.own; ++i) {
      const std::int64_t id = rows.first_id + i;
      const bool may =
          (params.flags & SlotParams::kAllowed) == 0 || (allowed[i / 32] >> i % 32 & 1);
      float logit = from[i];
      if (!may || out[i]) logit = kMinusInfinity;
      if (bias.count(id) != 0) logit += bias[id];
      if (in_prompt.count(id) != 0 || in_answer.count(id) != 0) {
        logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      }
      if (in_answer.count(id) != 0) {
        logit = fused(-params.frequency_penalty, static_cast<float>(in_answer[id]), logit);
        logit -= params.presence_penalty;
      }
      to[i] = logit;
    }
  }
}

void log_probabilities_reference(const LogProbabilities& args) {
  check_log_probabilities(args);
  const SamplingRowsView rows(args.rows);
  const std::int64_t alternatives = args.alternatives();
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t token = args.tokens.as<std::int32_t>()[row];
    if (!wants_logprobs(rows, row, token)) continue;
    std::vector<std::uint64_t> all;
    for (std::int64_t i = 0; i < rows.own; ++i) {
      all.push_back(candidate(plain_logit(rows.logits[row * rows.stride + i]),
                              rows.first_id + static_cast<std::uint32_t>(i)));
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    const double maximum = score_of_candidate(all.front());
    const auto distance = [&](double logit) { return logit == maximum ? 0.0 : logit - maximum; };
    double sum = 0;
    for (const std::uint64_t one : all) sum += std::exp(distance(score_of_candidate(one)));
    const auto logprob = [&](double logit) {
      return static_cast<float>(distance(logit) - std::log(sum));
    };
    const float logit = plain_logit(rows.logits[row * rows.stride + token - rows.first_id]);
    std::int32_t rank = 1;
    for (const std::uint64_t one : all) rank += score_of_candidate(one) > logit;
    args.logprob.as<float>()[row] = logprob(logit);
    args.rank.as<std::int32_t>()[row] = rank;
    for (std::int64_t i = 0; i < alternatives; ++i) {
      const bool is_there = i < static_cast<std::int64_t>(all.size());
      args.top_ids.as<std::int32_t>()[row * alternatives + i] =
          is_there ? static_cast<std::int32_t>(id_of_candidate(all[i])) : -1;
      args.top_logprobs.as<float>()[row * alternatives + i] =
          is_there ? logprob(score_of_candidate(all[i])) : kMinusInfinity;
    }
  }
}

void sample_tokens_reference(const SampleTokens& args) {
  check_sample_tokens(args);
  const SamplingRowsView rows(args.rows);
  const SampledTokens sampled(args);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t slot = rows.slots[row];
    const float threshold =
        args.thresholds.data != nullptr ? args.thresholds.as<float>()[row] : kMinusInfinity;
    sampled.set(row, slot, slot < 0 ? 0 : best_of_row(rows, row, threshold));
  }
}

void top_k_top_p_reference(const TopKTopP& args) {
  check_top_k_top_p(args);
  const SamplingRowsView rows(args.rows);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    std::uint32_t threshold = kLowestKey;
    if (rows.slots[row] >= 0) {
      const SlotParams& params = rows.params[rows.slots[row]];
      const float* logits = rows.sampled_logits(row, params.flags);
      std::vector<std::uint32_t> keys;
      for (std::int64_t i = 0; i < rows.own; ++i) {
        if (logits[i] == logits[i]) keys.push_back(order_key(logits[i]));
      }
      std::sort(keys.begin(), keys.end(), std::greater<>());
      threshold = threshold_of(keys, params);
    }
    args.thresholds.as<float>()[row] = value_of_key(threshold);
  }
}

}  // namespace nvllm::kernels
