// KvTraffic: bytes of keys and values that moved between a device and the host.
#pragma once

#include <cstdint>

namespace nvllm::kvcache {

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
