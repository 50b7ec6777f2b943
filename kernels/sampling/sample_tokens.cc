#include "kernels/sampling/sample_tokens.h"

#include <algorithm>
#include <limits>

#include "kernels/common/arguments.h"
#include "kernels/sampling/cpu/sample_tokens.h"
#include "kernels/sampling/sampling_math.h"
#ifdef NVLLM_CUDA
#include "kernels/sampling/sm80/sample_tokens.h"
#endif

namespace nvllm::kernels {
namespace {

std::uint64_t best_of_row(const RowsView& rows, std::int64_t row, float threshold) {
  const SlotRules& rules = rows.rules[rows.slots[row]];
  const float* logits = rows.judged(row, rules.flags);
  const RandomKeys noise = noise_keys(rules.seed, rows.positions[row]);
  std::uint64_t best = 0;
  for (std::int64_t i = 0; i < rows.own; ++i) {
    const std::uint32_t id = rows.first_id + static_cast<std::uint32_t>(i);
    float score = logits[i];
    if (rules.inverse_temperature != 0) {
      if (!(score >= threshold)) continue;
      score = fused(score, rules.inverse_temperature, gumbel(noise.bits(id)));
    }
    best = std::max(best, scored(score, id));
  }
  return best;
}

void require_targets(const Arguments& check, const TensorView& targets, std::int64_t rows) {
  if (targets.data == nullptr) return;
  check.require(targets, "targets", DType::i32, {rows});
  check.require_dense(targets, "targets");
}

void require_tokens(const Arguments& check, const TensorView& tokens, const TensorView& last_tokens,
                    std::int64_t rows) {
  check.require(tokens, "tokens", DType::i32, {rows});
  check.require_dense(tokens, "tokens");
  check.require(last_tokens, "last_tokens", DType::i32, {last_tokens.shape[0]});
  check.require_dense(last_tokens, "last_tokens");
}

}  // namespace

void check_draw_tokens(const DrawTokens& args) {
  constexpr Arguments check("draw_tokens");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t rows = args.rows.rows();
  if (args.thresholds.data != nullptr) {
    check.require(args.thresholds, "thresholds", DType::f32, {rows});
    check.require_dense(args.thresholds, "thresholds");
  }
  require_targets(check, args.targets, rows);
  check.require(args.scratch, "scratch", DType::i64, {draw_scratch_words(rows)});
  check.require_dense(args.scratch, "scratch");
  if (args.best.data != nullptr) {
    check.require(args.best, "best", DType::i64, {rows});
    check.require_dense(args.best, "best");
  } else {
    require_tokens(check, args.tokens, args.last_tokens, rows);
  }
}

void draw_tokens(const DrawTokens& args, Stream& stream) {
  check_draw_tokens(args);
  if (args.rows.rows() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::draw_tokens(args, stream);
#endif
  cpu::draw_tokens(args, stream);
}

void draw_tokens_reference(const DrawTokens& args) {
  check_draw_tokens(args);
  const RowsView rows(args.rows);
  const auto* targets = args.targets.as<std::int32_t>();
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t slot = rows.slots[row];
    const float threshold = args.thresholds.data != nullptr
                                ? args.thresholds.as<float>()[row]
                                : -std::numeric_limits<float>::infinity();
    const std::uint64_t best = slot < 0 ? 0 : best_of_row(rows, row, threshold);
    if (args.best.data != nullptr) {
      args.best.as<std::uint64_t>()[row] = best;
    } else if (slot < 0) {
      args.tokens.as<std::int32_t>()[row] = targets != nullptr ? targets[row] : -1;
    } else {
      const auto token = best == 0 ? 0 : static_cast<std::int32_t>(id_of_scored(best));
      args.tokens.as<std::int32_t>()[row] = args.last_tokens.as<std::int32_t>()[slot] = token;
    }
  }
}

void check_pick_tokens(const PickTokens& args) {
  constexpr Arguments check("pick_tokens");
  const std::int64_t parts = args.bests.shape[0], rows = args.bests.shape[1];
  check.require(args.bests, "bests", DType::i64, {parts, rows});
  check.require_dense(args.bests, "bests");
  check.require(args.slots, "slots", DType::i32, {rows});
  check.require_dense(args.slots, "slots");
  require_targets(check, args.targets, rows);
  require_tokens(check, args.tokens, args.last_tokens, rows);
}

void pick_tokens(const PickTokens& args, Stream& stream) {
  check_pick_tokens(args);
  if (args.bests.shape[1] == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::pick_tokens(args, stream);
#endif
  cpu::pick_tokens(args, stream);
}

void pick_tokens_reference(const PickTokens& args) {
  check_pick_tokens(args);
  const std::int64_t parts = args.bests.shape[0], rows = args.bests.shape[1];
  const auto* targets = args.targets.as<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t slot = args.slots.as<std::int32_t>()[row];
    std::int32_t& token = args.tokens.as<std::int32_t>()[row];
    token = targets != nullptr ? targets[row] : -1;
    if (slot < 0) continue;
    std::uint64_t best = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      best = std::max(best, args.bests.as<std::uint64_t>()[part * rows + row]);
    }
    token = best == 0 ? 0 : static_cast<std::int32_t>(id_of_scored(best));
    args.last_tokens.as<std::int32_t>()[slot] = token;
  }
}

}  // namespace nvllm::kernels
