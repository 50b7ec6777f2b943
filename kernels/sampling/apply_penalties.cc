#include "kernels/sampling/apply_penalties.h"

#include <algorithm>
#include <map>

#include "kernels/common/arguments.h"
#include "kernels/sampling/apply_penalties_math.h"
#include "kernels/sampling/cpu/apply_penalties.h"
#ifdef NVLLM_CUDA
#include "kernels/sampling/sm80/apply_penalties.h"
#endif

namespace nvllm::kernels {

void check_adjust_logits(const AdjustLogits& args) {
  constexpr Arguments check("adjust_logits");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t slots = args.rows.rules.shape[0];
  const auto require = [&](const TensorView& tensor, const char* name, std::int64_t rows,
                           std::int64_t columns) {
    check.require(tensor, name, DType::i32, {rows, columns});
    check.require_dense(tensor, name);
  };
  require(args.lists, "lists", slots, args.lists.shape[1]);
  require(args.allowed, "allowed", slots,
          std::max(args.allowed.shape[1], (args.rows.own() + 31) / 32));
  require(args.history, "history", args.history.shape[0], args.history.shape[1]);
  check.require(args.block_table, "block_table", DType::i32,
                {args.rows.rows(), args.block_table.shape[1]});
}

void adjust_logits(const AdjustLogits& args, Stream& stream) {
  check_adjust_logits(args);
  if (args.rows.rows() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::adjust_logits(args, stream);
#endif
  cpu::adjust_logits(args, stream);
}

void adjust_logits_reference(const AdjustLogits& args) {
  check_adjust_logits(args);
  const RowsView rows(args.rows);
  const std::int64_t block_size = args.history.shape[1];
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t slot = rows.slots[row];
    if (slot < 0 || (rows.rules[slot].flags & SlotRules::kAdjusts) == 0) continue;
    const SlotRules& rules = rows.rules[slot];
    const std::int32_t* words = args.lists.as<std::int32_t>() + slot * args.lists.shape[1];
    const auto* allowed = args.allowed.as<std::uint32_t>() + slot * args.allowed.shape[1];
    const std::int64_t position = rows.positions[row];

    std::map<std::int64_t, std::int64_t> in_prompt, in_answer;  // how often
    std::vector<std::int32_t> history;
    for (std::int64_t i = 0; i < position; ++i) {
      const std::int32_t block =
          args.block_table.as<std::int32_t>()[row * args.block_table.stride[0] + i / block_size];
      history.push_back(args.history.as<std::int32_t>()[block * block_size + i % block_size]);
      ++(i < rules.prompt_length ? in_prompt : in_answer)[history.back()];
    }

    std::vector<bool> out(rows.own, false);
    const auto ban = [&](std::int64_t id) {
      if (id >= rows.first_id && id < rows.first_id + rows.own) out[id - rows.first_id] = true;
    };
    const std::int32_t* word = words;
    for (int i = 0; i < rules.ends; ++i) {
      if (position < rules.least_length) ban(word[i]);
    }
    word += rules.ends;
    std::map<std::int64_t, float> bias;
    for (int i = 0; i < rules.biases; ++i) {
      bias[word[i]] = float_of_bits(static_cast<std::uint32_t>(word[rules.biases + i]));
    }
    word += 2 * rules.biases;
    const std::int32_t* tokens = word + rules.bad_words;
    std::int32_t begin = 0;
    for (int i = 0; i < rules.bad_words; begin = word[i++]) {
      const std::int32_t before = word[i] - begin - 1;
      if (before <= position &&
          std::equal(tokens + begin, tokens + begin + before, history.end() - before)) {
        ban(tokens[word[i] - 1]);
      }
    }

    const float* from = rows.logits + row * rows.stride;
    auto* to = const_cast<float*>(rows.judged(row, rules.flags));
    for (std::int64_t i = 0; i < rows.own; ++i) {
      const std::int64_t id = rows.first_id + i;
      const bool may = (rules.flags & SlotRules::kAllowed) == 0 || (allowed[i / 32] >> i % 32 & 1);
      float logit = from[i];
      if (!may || out[i]) logit = kOutOfTheQuestion;
      if (bias.count(id) != 0) logit += bias[id];
      if (in_prompt.count(id) != 0 || in_answer.count(id) != 0) {
        logit = logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
      }
      if (in_answer.count(id) != 0) {
        logit = fused(-rules.frequency_penalty, static_cast<float>(in_answer[id]), logit);
        logit -= rules.presence_penalty;
      }
      to[i] = logit;
    }
  }
}

}  // namespace nvllm::kernels
