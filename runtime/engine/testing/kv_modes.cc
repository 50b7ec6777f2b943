#include "runtime/engine/testing/kv_modes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

#include "base/text.h"

namespace nvllm::runtime {
namespace {

std::string compare_logprobs(const std::vector<TokenLogprobs>& got,
                             const std::vector<TokenLogprobs>& right) {
  if (got.size() != right.size()) return str(got.size(), " log-probabilities, not ", right.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::fabs(got[i].chosen.logprob - right[i].chosen.logprob) <= 1e-4f) continue;
    return str("log-probability ", i, " is ", got[i].chosen.logprob, ", not ",
               right[i].chosen.logprob);
  }
  return {};
}

}  // namespace

std::vector<Request> requests_of(const OpenModel& model, const std::vector<std::int64_t>& lengths) {
  std::mt19937 random(7);
  std::vector<Request> requests;
  for (const std::int64_t length : lengths) {
    Request& request = requests.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<std::int32_t>(
          random() % static_cast<std::uint32_t>(model.config.vocab_size)));
    }
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = 1.2f;  // needs all tokens
    request.sampling.max_tokens.reset();
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 0;
    request.sampling.prompt_logprobs = 0;
  }
  return requests;
}

Answers run(const OpenModel& model, int ranks, const EngineOptions& options,
            const std::vector<Request>& requests) {
  TestEngine engine(model, ranks, options);
  Answers answers = engine.run(requests);
  engine.stop();
  return answers;
}

EngineOptions paged() {
  EngineOptions options;
  options.max_model_len = kMaxLen;
  options.max_num_seqs = 8;
  return options;
}

EngineOptions layerwise(std::int64_t buffers, std::int64_t chunk) {
  EngineOptions options = paged();
  options.kv_offload = KvOffload::layerwise;
  options.transfer_block = 16;
  options.kv_buffers = buffers;
  options.max_num_batched_tokens = chunk;
  options.kv_offloading_bytes = std::int64_t{64} << 20;
  options.resident_blocks = 0;  // chunked mode: every block is copied
  return options;
}

std::string compare(const Answers& got, const Answers& right) {
  for (std::size_t i = 0; i < right.size(); ++i) {
    const Answer& mine = got[i].front();
    const Answer& theirs = right[i].front();
    const std::string name = str("request ", i, ": ");
    if (mine.error != theirs.error) return str(name, "error '", mine.error, "'");
    const auto [a, b] = std::ranges::mismatch(mine.tokens, theirs.tokens);
    if (a != mine.tokens.end() || b != theirs.tokens.end()) {
      return str(name, "other tokens from ", a - mine.tokens.begin(), " on, of ",
                 theirs.tokens.size());
    }
    if (mine.finish != theirs.finish) return str(name, "ended by ", name_of(mine.finish));
    for (const auto& what : {compare_logprobs(mine.logprobs, theirs.logprobs),
                             compare_logprobs(mine.prompt_logprobs, theirs.prompt_logprobs)}) {
      if (!what.empty()) return name + what;
    }
  }
  return {};
}

}  // namespace nvllm::runtime
