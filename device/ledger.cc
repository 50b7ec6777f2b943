#include "device/ledger.h"

#include <cstdio>

#include "base/check.h"

namespace nvllm {

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::device: return "device";
    case MemoryKind::pinned: return "pinned";
    case MemoryKind::host: return "host";
  }
  return "?";
}

std::uint64_t Ledger::add(MemoryKind kind, const std::string& purpose, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  items_.emplace(next_id_, Item{kind, purpose, bytes});
  return next_id_++;
}

void Ledger::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  NVLLM_CHECK(items_.erase(id) == 1, "no item ", id, " in the ledger");
}

std::size_t Ledger::total(MemoryKind kind) const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [id, item] : items_) {
    if (item.kind == kind) sum += item.bytes;
  }
  return sum;
}

std::vector<Ledger::Entry> Ledger::entries() const {
  std::map<std::pair<MemoryKind, std::string>, Entry> sums;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, item] : items_) {
      Entry& entry =
          sums.try_emplace({item.kind, item.purpose}, Entry{item.kind, item.purpose, 0, 0})
              .first->second;
      entry.bytes += item.bytes;
      ++entry.buffers;
    }
  }
  std::vector<Entry> entries;
  entries.reserve(sums.size());
  for (auto& [key, entry] : sums) entries.push_back(std::move(entry));
  return entries;
}

std::string Ledger::report() const {
  std::string text;
  const auto line = [&text](const char* kind, const char* purpose, std::size_t bytes,
                            std::size_t buffers) {
    char columns[96];
    std::snprintf(columns, sizeof columns, "%-8s %18zu bytes %6zu %-8s ", kind, bytes, buffers,
                  buffers == 1 ? "buffer" : "buffers");
    text += columns;
    text += purpose;
    text += '\n';
  };
  // From one copy of the entries: the totals are those of the lines above them, whatever other
  // threads do.
  const std::vector<Entry> all = entries();
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::host}) {
    std::size_t bytes = 0, buffers = 0;
    for (const Entry& entry : all) {
      if (entry.kind != kind) continue;
      line(name_of(kind), entry.purpose.c_str(), entry.bytes, entry.buffers);
      bytes += entry.bytes;
      buffers += entry.buffers;
    }
    if (buffers > 0) line(name_of(kind), "total", bytes, buffers);
  }
  return text;
}

}  // namespace nvllm
