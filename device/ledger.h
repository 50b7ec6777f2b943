// The ledger: every byte that a backend has handed out, by memory kind and purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace nvllm {

enum class MemoryKind {
  device,
  pinned,
  host
};  // pinned: host memory that the device can copy from
const char* name_of(MemoryKind kind);

// Thread-safe.
class Ledger {
 public:
  struct Entry {
    MemoryKind kind;
    std::string purpose;  // "weights", "collective buffers"; equal purposes are added up
    std::size_t bytes;
    std::size_t buffers;
  };

  std::uint64_t add(MemoryKind kind, const std::string& purpose, std::size_t bytes);
  void remove(std::uint64_t id);

  std::size_t total(MemoryKind kind) const;
  std::vector<Entry> entries() const;  // ordered by kind, then purpose
  std::string report() const;          // a table; its lines add up to its totals

 private:
  struct Item {
    MemoryKind kind;
    std::string purpose;
    std::size_t bytes;
  };

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Item> items_;
  std::uint64_t next_id_ = 1;
};

}  // namespace nvllm
