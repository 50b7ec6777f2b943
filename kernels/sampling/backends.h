// The backend implementations of this folder's operations, among which sampling.cc selects, for
// checked arguments on a stream of that backend. Each corresponds to the function of the same name
// in nvllm::kernels.
#pragma once

#include <cstdint>

namespace nvllm {
class Stream;
}

namespace nvllm::kernels {

struct ApplyPenalties;
struct LogProbabilities;
struct ReduceSamples;
struct SampleTokens;
struct TopKTopP;
enum class TruncationKind : std::uint8_t;

namespace cpu {

void apply_penalties(const ApplyPenalties& args, Stream& stream);
void log_probabilities(const LogProbabilities& args, Stream& stream);
void rank_tokens(const LogProbabilities& args, Stream& stream);
void reduce_samples(const ReduceSamples& args, Stream& stream);
void sample_tokens(const SampleTokens& args, Stream& stream);
void summarize_logits(const LogProbabilities& args, Stream& stream);

void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);

}  // namespace cpu

namespace cuda {

void apply_penalties(const ApplyPenalties& args, Stream& stream);
void log_probabilities(const LogProbabilities& args, Stream& stream);
void rank_tokens(const LogProbabilities& args, Stream& stream);
void reduce_samples(const ReduceSamples& args, Stream& stream);
void sample_tokens(const SampleTokens& args, Stream& stream);
void summarize_logits(const LogProbabilities& args, Stream& stream);

void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);

// All of top_k_top_p() on Hopper. Returns false, with nothing enqueued, on other GPUs and for rows
// that are too long.
bool top_k_top_p_sm90(const TopKTopP& args, Stream& stream);

}  // namespace cuda
}  // namespace nvllm::kernels
