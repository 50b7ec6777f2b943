// Request: what is asked of the engine, and what it answers. Token ids only; text is the front
// end's. Part of the library's public face.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nvllm::runtime {

// Names, meanings and defaults as in vLLM's SamplingParams. RequestTracker checks them and makes
// layers::SamplingRules of them, which hold for one sequence: with a seed, positions in place of
// counts, and the ids of its ends. The sampler packs those into kernels::SlotParams, 72 bytes of
// device memory that kernels read.
struct SamplingParams {
  std::int32_t n = 1;        // answers to the same prompt
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  std::int32_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed =
      std::nullopt;                             // absent: one is chosen; answer i of n has seed + i
  std::optional<std::int32_t> max_tokens = 16;  // absent: as many as there is room for
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids = {};
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::vector<std::int32_t> allowed_token_ids = {};       // empty: all
  std::vector<std::vector<std::int32_t>> bad_words = {};  // as token ids
  // Alternatives beside the chosen token's own.
  std::optional<std::int32_t> logprobs = std::nullopt;
  std::optional<std::int32_t> prompt_logprobs = std::nullopt;  // the same for the prompt's tokens

  template <class Archive>
  void serialize(Archive& archive) {
    archive(n, temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, seed, max_tokens, min_tokens, ignore_eos, stop_token_ids, logit_bias,
            allowed_token_ids, bad_words, logprobs, prompt_logprobs);
  }
};

// An Error that names the field, its value and the fix, if a value is out of its range by itself.
// What depends on the model or the engine (ids, lengths) the engine checks.
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
  std::vector<TokenLogprob> top = {};  // the most likely first

  template <class Archive>
  void serialize(Archive& archive) {
    archive(chosen, top);
  }
};

// Times of a request's life in rank 0, now_ns().
struct RequestTimes {
  std::int64_t arrived_ns = 0;
  std::int64_t scheduled_ns = 0;    // its first row was enqueued
  std::int64_t first_token_ns = 0;  // known on the host
  std::int64_t last_token_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(arrived_ns, scheduled_ns, first_token_ns, last_token_ns);
  }
};

// What is new of one answer to a request. The last one has a finish reason; or an error, and then
// there is one for the whole request.
struct Update {
  std::uint64_t request = 0;
  std::int32_t index = 0;  // of the answer, below n
  // The token that ended it (an end, a stop id) is one of them.
  std::vector<std::int32_t> tokens = {};
  std::vector<TokenLogprobs> logprobs = {};  // of these tokens, where asked for
  // With the first tokens, where asked for; of the prompt's tokens but the first.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  FinishReason finish = FinishReason::none;
  std::string error = "";       // why the request was refused, or given up
  bool internal_error = false;  // the error is the model's or the engine's, not the request's

  // With the last one.
  std::int32_t cached_tokens = 0;  // of the prompt, when it was first scheduled
  std::int32_t preemptions = 0;
  // "paged", "contiguous", "layerwise"; of keys and values in chunks, how many stayed on the
  // device: "resident": all, "hybrid": some, "chunked": none.
  std::string kv_mode = "";
  RequestTimes times = {};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(request, index, tokens, logprobs, prompt_logprobs, finish, error, internal_error,
            cached_tokens, preemptions, kv_mode, times);
  }
};

}  // namespace nvllm::runtime
