#include "benchmarks/simulation/traffic.h"

#include <cmath>
#include <random>
#include <utility>

#include "base/error.h"
#include "launcher/bench/serve/serve_workload.h"

namespace nvllm::simulation {
namespace {

constexpr std::int32_t kVocabulary = 10'001;

class RandomRequests : public Traffic {
 public:
  explicit RandomRequests(const RandomTraffic& options)
      : options_(options),
        stream_({.sequences = options.requests,
                 .prompt = options.input,
                 .output = options.output,
                 .seed = options.seed,
                 .vocabulary = kVocabulary}),
        arrivals_(options.rate, 1, options.seed) {}

  std::optional<Arrival> next() override {
    if (sent_ == options_.requests || sent_ == options_.concurrency) return std::nullopt;
    const double at = due_;
    due_ += arrivals_.next_gap_s();
    return request(at);
  }

  std::optional<Arrival> after(std::int64_t /*number*/, std::span<const std::int32_t> /*answer*/,
                               double now) override {
    if (!std::isinf(options_.rate) || sent_ == options_.requests) return std::nullopt;
    return request(now);
  }

 private:
  Arrival request(double at) {
    const runtime::Request& request = stream_.next();
    return {.at = at,
            .number = ++sent_,
            .prompt = request.prompt,
            .max_tokens = request.sampling.max_tokens.value_or(1)};
  }

  const RandomTraffic options_;
  launcher::WorkloadStream stream_;
  launcher::Arrivals arrivals_;
  std::int64_t sent_ = 0;
  double due_ = 0;
};

class ConversationRequests : public Traffic {
 public:
  explicit ConversationRequests(const Conversations& options)
      : options_(options), arrivals_(options.rate, 1, options.seed), random_(options.seed + 1) {
    for (std::int64_t i = 0; i < options.system_prompts; ++i)
      system_prompts_.push_back(tokens(options.system_tokens));
  }

  std::optional<Arrival> next() override {
    if (started_ == options_.conversations) return std::nullopt;
    ++started_;
    Conversation conversation{
        .text = system_prompts_[static_cast<std::size_t>(from({0, options_.system_prompts - 1}))],
        .turns = from(options_.turns)};
    const double at = due_;
    due_ += arrivals_.next_gap_s();
    return turn(std::move(conversation), at);
  }

  std::optional<Arrival> after(std::int64_t number, std::span<const std::int32_t> answer,
                               double now) override {
    auto node = open_.extract(number);
    Conversation& conversation = node.mapped();
    if (conversation.turns == 0) return std::nullopt;
    conversation.text.insert(conversation.text.end(), answer.begin(), answer.end());
    return turn(std::move(conversation), now - std::log1p(-uniform()) * options_.think_s);
  }

 private:
  struct Conversation {
    std::vector<std::int32_t> text;
    std::int64_t turns = 0;  // left
  };

  Arrival turn(Conversation conversation, double at) {
    const std::vector<std::int32_t> more = tokens(from(options_.input));
    conversation.text.insert(conversation.text.end(), more.begin(), more.end());
    --conversation.turns;
    Arrival arrival{.at = at,
                    .number = ++sent_,
                    .prompt = conversation.text,
                    .max_tokens = from(options_.output)};
    open_.emplace(arrival.number, std::move(conversation));
    return arrival;
  }

  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // in [0, 1)
  std::int64_t from(LengthRange range) {
    const auto count = static_cast<double>(range.max - range.min + 1);
    return range.min + static_cast<std::int64_t>(uniform() * count);
  }
  std::vector<std::int32_t> tokens(std::int64_t count) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<std::int32_t>(from({0, kVocabulary - 1})));
    return tokens;
  }

  const Conversations options_;
  launcher::Arrivals arrivals_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::int32_t>> system_prompts_;
  std::unordered_map<std::int64_t, Conversation> open_;  // by the request in flight
  std::int64_t started_ = 0, sent_ = 0;
  double due_ = 0;
};

void check(bool good, const char* what) {
  if (!good) fail("traffic: ", what);
}
void check(LengthRange range, const char* what) {
  check(range.min >= 1 && range.min <= range.max, what);
}

}  // namespace

std::unique_ptr<Traffic> make_traffic(const RandomTraffic& options) {
  check(options.requests >= 1, "requests must be at least 1");
  check(options.rate > 0, "rate must be above 0; leave it out for all requests at once");
  check(options.concurrency >= 1, "concurrency must be at least 1");
  check(std::isinf(options.rate) || options.concurrency >= options.requests,
        "rate and concurrency exclude each other; leave one out");
  check(options.input, "input_len must be two numbers, at least 1, the smaller one first");
  check(options.output, "output_len must be two numbers, at least 1, the smaller one first");
  return std::make_unique<RandomRequests>(options);
}

std::unique_ptr<Traffic> make_traffic(const Conversations& options) {
  check(options.conversations >= 1, "conversations must be at least 1");
  check(options.rate > 0 && !std::isinf(options.rate), "rate must be above 0");
  check(options.system_prompts >= 1, "system_prompts must be at least 1");
  check(options.system_tokens >= 0, "system_tokens must be at least 0");
  check(options.think_s >= 0, "think_s must be at least 0");
  check(options.turns, "turns must be two numbers, at least 1, the smaller one first");
  check(options.input, "input_len must be two numbers, at least 1, the smaller one first");
  check(options.output, "output_len must be two numbers, at least 1, the smaller one first");
  return std::make_unique<ConversationRequests>(options);
}

}  // namespace nvllm::simulation
