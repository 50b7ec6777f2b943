// KvTraffic: how many bytes of a KV cache have crossed between host and device, or were read where they are.
#pragma once

#include <cstdint>

namespace nvllm::kvcache {

// Of one rank, since it began; counted when the copy is enqueued.
struct KvTraffic {
  std::uint64_t to_host = 0;
  std::uint64_t to_device = 0;
  std::uint64_t by_host = 0;  // read by the host's cores, for attention

  KvTraffic& operator+=(const KvTraffic& other) {
    to_host += other.to_host;
    to_device += other.to_device;
    by_host += other.by_host;
    return *this;
  }
  bool operator==(const KvTraffic&) const = default;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(to_host, to_device, by_host);
  }
};

}  // namespace nvllm::kvcache
