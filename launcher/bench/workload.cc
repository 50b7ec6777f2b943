#include "launcher/bench/workload.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {

constexpr std::int64_t kIds = 10'001;  // 0 to 10,000

runtime::Request make_request(std::vector<std::int32_t> prompt, std::int64_t output_tokens) {
  runtime::Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.6;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = static_cast<std::int32_t>(output_tokens);
  return request;
}

std::vector<std::int32_t> random_prompt(PythonRandom& random, std::int64_t tokens,
                                        std::int64_t vocabulary) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
  for (std::int32_t& id : prompt) {
    id = static_cast<std::int32_t>(random.randint(0, vocabulary - 1));
  }
  return prompt;
}

Workload make_workload(const WorkloadOptions& options) {
  PythonRandom random(options.seed);
  const std::int64_t ids = std::min(kIds, options.vocabulary);
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(options.sequences));
  Workload workload;
  for (std::vector<std::int32_t>& prompt : prompts) {
    const std::int64_t length = random.randint(options.prompt.min, options.prompt.max);
    prompt = random_prompt(random, length, ids);
    workload.prompt_tokens += length;
  }
  for (std::vector<std::int32_t>& prompt : prompts) {
    const std::int64_t length = random.randint(options.output.min, options.output.max);
    workload.requests.push_back(make_request(std::move(prompt), length));
    if (options.logprobs) {
      runtime::SamplingParams& sampling = workload.requests.back().sampling;
      sampling.seed = options.seed + workload.requests.size();
      sampling.logprobs = 0;  // of the token itself only
    }
    workload.output_tokens += length;
  }
  return workload;
}

}  // namespace nvllm::launcher
