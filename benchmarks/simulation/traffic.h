// Traffic: requests and the times when they are sent. The same options give the same traffic.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "launcher/cli/options.h"

namespace nvllm::simulation {

using launcher::LengthRange;

struct Arrival {
  double at = 0;            // s
  std::int64_t number = 0;  // of the request: 1, 2, ...
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;
};

class Traffic {
 public:
  virtual ~Traffic() = default;
  // The next request whose arrival does not depend on answers, in order of time.
  virtual std::optional<Arrival> next() = 0;
  // The follow-up request after this one's answer is complete; nullopt: none.
  virtual std::optional<Arrival> after(std::int64_t number, std::span<const std::int32_t> answer,
                                       double now) = 0;
};

// Prompts without common prefixes: those that `nvllm-launch bench serve` sends with the same
// options, at the same times.
struct RandomTraffic {
  std::int64_t requests = 256;
  LengthRange input{100, 1024}, output{100, 1024};
  std::uint64_t seed = 0;
  double rate = std::numeric_limits<double>::infinity();  // per second, as a Poisson process
  std::int64_t concurrency = std::numeric_limits<std::int64_t>::max();  // limits requests in flight
                                                                        // if all are due at once
};

// Conversations: each starts with one of a few system prompts and has several turns. A turn's
// prompt is the whole conversation so far plus new tokens; it is sent some time after the previous
// answer.
struct Conversations {
  std::int64_t conversations = 1000;
  double rate = 1;  // new conversations per second, as a Poisson process
  std::int64_t system_prompts = 8;
  std::int64_t system_tokens = 512;
  LengthRange turns{1, 8}, input{32, 256}, output{64, 384};
  double think_s = 10;  // mean, exponentially distributed
  std::uint64_t seed = 0;
};

std::unique_ptr<Traffic> make_traffic(const RandomTraffic& options);
std::unique_ptr<Traffic> make_traffic(const Conversations& options);

}  // namespace nvllm::simulation
