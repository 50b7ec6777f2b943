// KvTraffic: how many bytes of a KV cache have crossed between host and device.
#pragma once

#include <cstdint>

namespace nvllm::kvcache {

// Of one rank, since it began; counted when the copy is enqueued.
struct KvTraffic {
  std::uint64_t to_host = 0;
  std::uint64_t to_device = 0;

  KvTraffic& operator+=(const KvTraffic& other) {
    to_host += other.to_host;
    to_device += other.to_device;
    return *this;
  }
  bool operator==(const KvTraffic&) const = default;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(to_host, to_device);
  }
};

}  // namespace nvllm::kvcache
