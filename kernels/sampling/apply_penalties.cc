#include "kernels/sampling/apply_penalties.h"

#include <algorithm>
#include <map>

#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {

void check_apply_penalties(const ApplyPenalties& args) {
  constexpr Arguments check("apply_penalties");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t slots = args.rows.params.shape[0];
  check.require_dense(args.lists, "lists", DType::i32, {slots, args.lists.shape[1]});
  const std::int64_t allowed = std::max(args.allowed.shape[1], (args.rows.own() + 31) / 32);
  check.require_dense(args.allowed, "allowed", DType::i32, {slots, allowed});
  check.require_dense(args.history, "history", DType::i32,
                      {args.history.shape[0], args.history.shape[1]});
  check.require(args.block_table, "block_table", DType::i32,
                {args.rows.rows(), args.block_table.shape[1]});
}

void apply_penalties(const ApplyPenalties& args, Stream& stream) {
  check_apply_penalties(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, apply_penalties(args, stream));
}

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

}  // namespace nvllm::kernels
