#include "benchmarks/simulation/router.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace nvllm::simulation {
namespace {

constexpr std::size_t kChunk = 64;  // tokens

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

std::uint64_t hash_of(std::uint64_t hash, std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) hash = mix(hash, static_cast<std::uint64_t>(token) + 1);
  return hash;
}

}  // namespace

Policy policy_named(const std::string& name) {
  if (name == "round_robin") return Policy::round_robin;
  if (name == "least_loaded") return Policy::fewest_requests;
  if (name == "prefix_hash") return Policy::prefix_hash;
  if (name == "cache_aware") return Policy::cache_aware;
  fail("unknown policy '", name, "'; known: round_robin, least_loaded, prefix_hash, cache_aware");
}

Router::Router(const RouterOptions& options)
    : options_(options), requests_(static_cast<std::size_t>(options.replicas)) {
  if (options.replicas < 1 || options.replicas > static_cast<std::int64_t>(kMaxReplicas)) {
    fail("replicas ", options.replicas, ": must be 1 to ", kMaxReplicas);
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) all_.set(i);
}

std::size_t Router::choose(std::span<const std::int32_t> prompt) {
  std::size_t replica = 0;
  switch (options_.policy) {
    case Policy::round_robin: replica = next_++ % requests_.size(); break;
    case Policy::fewest_requests: replica = with_fewest_requests(all_); break;
    case Policy::prefix_hash: replica = hashed(prompt); break;
    case Policy::cache_aware: replica = with_longest_prefix(prompt); break;
  }
  ++requests_[replica];
  return replica;
}

std::size_t Router::with_fewest_requests(const Replicas& among) {
  std::size_t best = requests_.size();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const std::size_t replica = (next_ + i) % requests_.size();
    if (!among.test(replica)) continue;
    if (best == requests_.size() || requests_[replica] < requests_[best]) best = replica;
  }
  next_ = best + 1;
  return best;
}

std::size_t Router::hashed(std::span<const std::int32_t> prompt) const {
  const auto count = std::min(prompt.size(), static_cast<std::size_t>(options_.prefix_tokens));
  return (hash_of(0, prompt.first(count)) >> 16) % requests_.size();
}

std::size_t Router::with_longest_prefix(std::span<const std::int32_t> prompt) {
  const auto sum = std::accumulate(requests_.begin(), requests_.end(), std::int64_t{0});
  const double limit =
      options_.balance * static_cast<double>(sum) / static_cast<double>(requests_.size()) + 1;
  Replicas holders;  // of the longest cached prefix with a replica within the limit
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (static_cast<double>(requests_[i]) < limit) holders.set(i);
  }
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 0;
  for (std::size_t at = 0; at + kChunk <= prompt.size(); at += kChunk) {
    hashes.push_back(hash = hash_of(hash, prompt.subspan(at, kChunk)));
  }
  bool found = false;
  for (const std::uint64_t prefix : hashes) {
    const auto known = known_.find(prefix);
    if (known == known_.end() || (holders & known->second).none()) break;
    holders &= known->second;
    found = true;
  }
  const std::size_t replica = with_fewest_requests(found ? holders : all_);
  for (const std::uint64_t prefix : hashes) known_[prefix].set(replica);
  return replica;
}

}  // namespace nvllm::simulation
