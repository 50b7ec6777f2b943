// Request: a request to the engine, and the updates that it returns. Both contain token ids only;
// text is handled by the front end. Part of the library's public interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nvllm::runtime {

// The limit of SamplingParams::n: each answer takes memory before it starts.
constexpr std::int32_t kMaxAnswers = 16384;
// The limit of SamplingParams::logprobs and prompt_logprobs.
constexpr std::int32_t kMaxLogprobs = 20;

// Names, meanings and defaults are those of vLLM's SamplingParams. RequestTracker checks them and
// derives layers::SamplingRules for each sequence, with a seed, absolute positions instead of token
// counts, and the ids that end it. The sampler packs those into kernels::SlotParams, 72 bytes of
// device memory that kernels read.
struct SamplingParams {
  std::int32_t n = 1;        // number of answers to the prompt
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  std::int32_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed =
      std::nullopt;                             // absent: chosen at random; answer i of n uses seed
                                                // + i
  std::optional<std::int32_t> max_tokens = 16;  // absent: up to the maximum length
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids = {};
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::vector<std::int32_t> allowed_token_ids = {};       // empty: all
  std::vector<std::vector<std::int32_t>> bad_words = {};  // as token ids
  // Number of alternatives reported beside the sampled token.
  std::optional<std::int32_t> logprobs = std::nullopt;
  std::optional<std::int32_t> prompt_logprobs = std::nullopt;  // the same for the prompt's tokens

  template <class Archive>
  void serialize(Archive& archive) {
    archive(n, temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, seed, max_tokens, min_tokens, ignore_eos, stop_token_ids, logit_bias,
            allowed_token_ids, bad_words, logprobs, prompt_logprobs);
  }
};

// Throws an Error that names the field, its value and the fix, if a value is out of range by
// itself. Checks that depend on the model or the engine (ids, lengths) are the engine's.
void check_sampling_params(const SamplingParams& params);

struct Request {
  std::vector<std::int32_t> prompt = {};
  SamplingParams sampling = {};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(prompt, sampling);
  }
};

enum class FinishReason : std::uint8_t { none, stop, length, abort };
const char* name_of(FinishReason reason);  // "stop", "length", "abort"

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;  // 1: the most likely

  template <class Archive>
  void serialize(Archive& archive) {
    archive(token, logprob, rank);
  }
};
struct TokenLogprobs {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};  // most likely first

  template <class Archive>
  void serialize(Archive& archive) {
    archive(chosen, top);
  }
};

// Times of a request on rank 0, in now_ns().
struct RequestTimes {
  std::int64_t arrived_ns = 0;
  std::int64_t scheduled_ns = 0;    // when its first row was enqueued
  std::int64_t first_token_ns = 0;  // when it arrived on the host
  std::int64_t last_token_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(arrived_ns, scheduled_ns, first_token_ns, last_token_ns);
  }
};

// New output of one answer to a request. The last update has a finish reason, or an error, which
// applies to the whole request.
struct Update {
  std::uint64_t request = 0;
  std::int32_t index = 0;  // of the answer, less than n
  // Includes the token that ended the answer (EOS or a stop id).
  std::vector<std::int32_t> tokens = {};
  std::vector<TokenLogprobs> logprobs = {};  // of these tokens, if requested
  // Sent with the first tokens, if requested; for all prompt tokens but the first.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  FinishReason finish = FinishReason::none;
  std::string error = "";       // why the request was refused or failed
  bool internal_error = false;  // the error is caused by the model or the engine, not by the
                                // request

  // Set in the last update.
  std::int32_t cached_tokens = 0;  // prompt tokens cached when it was first scheduled
  std::int32_t preemptions = 0;
  // "paged", "contiguous" or "layerwise"; in chunked mode, how much stayed on the device:
  // "resident" (all), "hybrid" (some) or "chunked" (none).
  std::string kv_mode = "";
  RequestTimes times = {};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(request, index, tokens, logprobs, prompt_logprobs, finish, error, internal_error,
            cached_tokens, preemptions, kv_mode, times);
  }
};

}  // namespace nvllm::runtime
