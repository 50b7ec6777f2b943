#include "kernels/sampling/log_probabilities.h"

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

}  // namespace nvllm::kernels
