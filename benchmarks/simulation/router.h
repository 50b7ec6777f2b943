// Router: chooses a replica for each request. It knows the request's prompt and how many requests
// each replica has, like routers that see all requests and their ends.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nvllm::simulation {

inline constexpr std::size_t kMaxReplicas = 256;

enum class Policy : std::uint8_t { round_robin, fewest_requests, prefix_hash, cache_aware };
Policy policy_named(const std::string& name);  // an Error for an unknown name

struct RouterOptions {
  Policy policy = Policy::round_robin;
  std::int64_t replicas = 1;
  // prefix_hash: how many tokens are hashed. 1,024 bytes of text are about 256 tokens.
  std::int64_t prefix_tokens = 256;
  // cache_aware: a replica is not chosen for its prefix if it has more than `balance` times the
  // mean number of requests, plus one.
  double balance = 1.5;
};

class Router {
 public:
  explicit Router(const RouterOptions& options);

  // Chooses the replica of a request that arrives now. The replica's count includes the request
  // until release().
  std::size_t choose(std::span<const std::int32_t> prompt);
  void release(std::size_t replica) { --requests_.at(replica); }

 private:
  using Replicas = std::bitset<kMaxReplicas>;

  // The replica in `among` with the fewest requests; equal ones are chosen in turn.
  std::size_t with_fewest_requests(const Replicas& among);
  std::size_t hashed(std::span<const std::int32_t> prompt) const;
  std::size_t with_longest_prefix(std::span<const std::int32_t> prompt);

  const RouterOptions options_;
  std::vector<std::int64_t> requests_;  // of each replica
  std::size_t next_ = 0;                // the next in turn
  Replicas all_;
  // cache_aware: the replicas to which the first n chunks of a prompt were sent, by their hash.
  // Nothing is removed, although a replica may have evicted it.
  std::unordered_map<std::uint64_t, Replicas> known_;
};

}  // namespace nvllm::simulation
