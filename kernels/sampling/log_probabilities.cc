#include "kernels/sampling/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {

void check_log_probabilities(const LogProbabilities& args) {
  constexpr Arguments check("log_probabilities");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t rows = args.rows.rows(), parts = args.parts();
  const std::int64_t alternatives = args.alternatives(), words = logprob_record_words(alternatives);
  if (alternatives > kMaxAlternatives) {
    fail("log_probabilities: ", alternatives, " alternatives; at most ", kMaxAlternatives,
         " can be asked for");
  }
  check.require_dense(args.tokens, "tokens", DType::i32, {rows});
  check.require_dense(args.records, "records", DType::i32, {rows, words});
  check.require_dense(args.all_records, "all_records", DType::i32, {parts, rows, words});
  check.require_dense(args.higher, "higher", DType::i32, {rows});
  check.require_dense(args.all_higher, "all_higher", DType::i32, {parts, rows});
  check.require_dense(args.logprob, "logprob", DType::f32, {rows});
  check.require_dense(args.rank, "rank", DType::i32, {rows});
  check.require_dense(args.top_ids, "top_ids", DType::i32, {rows, alternatives});
  check.require_dense(args.top_logprobs, "top_logprobs", DType::f32, {rows, alternatives});
}

void summarize_logits(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, summarize_logits(args, stream));
}

void log_probabilities(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, log_probabilities(args, stream));
}

void rank_tokens(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, rank_tokens(args, stream));
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

}  // namespace nvllm::kernels
