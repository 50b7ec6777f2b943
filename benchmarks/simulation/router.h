// Router: which replica gets a request. It knows the request's prompt and how many requests each
// replica has, as routers do that see all requests and their ends.
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
Policy policy_named(const std::string& name);  // an Error if there is none of that name

struct RouterOptions {
  Policy policy = Policy::round_robin;
  std::int64_t replicas = 1;
  // prefix_hash: so many tokens choose the replica. 1,024 bytes of text are some 256 tokens.
  std::int64_t prefix_tokens = 256;
  // cache_aware: a replica that has more than `balance` times the mean number of requests, and one
  // more, is not chosen for its prefix.
  double balance = 1.5;
};

class Router {
 public:
  explicit Router(const RouterOptions& options);

  // The replica of a request that comes now. It has one request more until release().
  std::size_t choose(std::span<const std::int32_t> prompt);
  void release(std::size_t replica) { --requests_.at(replica); }

 private:
  using Replicas = std::bitset<kMaxReplicas>;

  // Of some replicas the one with the fewest requests; among equals, they take turns.
  std::size_t with_fewest_requests(const Replicas& among);
  std::size_t hashed(std::span<const std::int32_t> prompt) const;
  std::size_t with_longest_prefix(std::span<const std::int32_t> prompt);

  const RouterOptions options_;
  std::vector<std::int64_t> requests_;  // of each replica
  std::size_t next_ = 0;                // whose turn it is
  Replicas all_;
  // cache_aware: by the hash of a prompt's first n chunks, the replicas that were sent it. Nothing
  // is forgotten here, though a replica may have evicted it.
  std::unordered_map<std::uint64_t, Replicas> known_;
};

}  // namespace nvllm::simulation
