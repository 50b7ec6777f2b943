#include "launcher/bench/workload.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kLargestId = 10'000;

}  // namespace

runtime::Request make_request(std::vector<std::int32_t> prompt, std::int64_t output_tokens) {
  runtime::Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.6;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = static_cast<std::int32_t>(output_tokens);
  return request;
}

Workload make_workload(const WorkloadOptions& options) {
  PythonRandom random(options.seed);
  const std::int64_t largest = std::min(kLargestId, options.vocabulary - 1);
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(options.sequences));
  Workload workload;
  for (std::vector<std::int32_t>& prompt : prompts) {
    const std::int64_t length = random.randint(options.prompt.min, options.prompt.max);
    for (std::int64_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<std::int32_t>(random.randint(0, largest)));
    }
    workload.prompt_tokens += length;
  }
  for (std::vector<std::int32_t>& prompt : prompts) {
    const std::int64_t length = random.randint(options.output.min, options.output.max);
    workload.requests.push_back(make_request(std::move(prompt), length));
    workload.output_tokens += length;
  }
  return workload;
}

}  // namespace nvllm::launcher
