// Penalties, bias and banned tokens on the CPU: all but the allowed ids touches single logits.
#include <algorithm>
#include <unordered_map>

#include "kernels/common/cpu/rows.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels::cpu {
namespace {

struct Job : PenaltiesView {
  using PenaltiesView::PenaltiesView;

  // The place of an id's logit; nullptr: it is not here.
  float* find(float* logits, std::int32_t id) const {
    const std::int64_t i = static_cast<std::int64_t>(id) - rows.first_id;
    return i >= 0 && i < rows.own ? logits + i : nullptr;
  }

  void keep_allowed(float* logits, const std::uint32_t* bits) const {
    for (std::int64_t i = 0; i < rows.own; ++i) {
      if ((bits[i / 32] >> i % 32 & 1) == 0) logits[i] = kMinusInfinity;
    }
  }

  void penalize(float* logits, const SlotParams& params, const RowHistory& tokens,
                std::int64_t position) const {
    std::unordered_map<std::int32_t, std::uint32_t> seen;
    for (std::int64_t i = 0; i < position; ++i) {
      std::uint32_t& times = seen[tokens.at(i)];
      times = i < params.prompt_length ? times | kInPrompt : times + 1;
    }
    for (const auto& [id, times] : seen) {
      if (float* logit = find(logits, id)) *logit = penalized(*logit, times, params);
    }
  }

  void penalize_row(std::int64_t row) const {
    const std::int32_t slot = rows.slots[row];
    if (slot < 0 || (rows.params[slot].flags & SlotParams::kChangesLogits) == 0) return;
    const SlotParams& params = rows.params[slot];
    const RowLists words(lists + slot * list_words, params);
    const RowHistory tokens{history, block_table + row * table_stride, block_size};
    const std::int64_t position = rows.positions[row];

    auto* logits = const_cast<float*>(rows.sampled_logits(row, params.flags));
    if (rows.changed_logits != nullptr)
      std::copy_n(rows.logits + row * rows.stride, rows.own, logits);
    const auto ban = [&](std::int32_t id) {
      if (float* logit = find(logits, id)) *logit = kMinusInfinity;
    };
    if ((params.flags & SlotParams::kAllowed) != 0) {
      keep_allowed(logits, allowed + slot * allowed_words);
    }
    if (position < params.min_length) std::for_each_n(words.ends, params.ends, ban);
    for (int i = 0; i < params.bad_words; ++i) ban(words.banned_by(i, tokens, position));
    for (int i = 0; i < params.biases; ++i) {
      if (float* logit = find(logits, words.bias_ids[i])) *logit += words.biases[i];
    }
    if ((params.flags & SlotParams::kPenalties) != 0) penalize(logits, params, tokens, position);
  }

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) penalize_row(row);
  }
};

}  // namespace

void apply_penalties(const ApplyPenalties& args, Stream& stream) {
  const Job job(args);
  submit_rows(stream, job.rows.rows, job.rows.own * static_cast<std::int64_t>(sizeof(float)), job);
}

}  // namespace nvllm::kernels::cpu
