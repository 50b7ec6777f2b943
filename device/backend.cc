#include "device/backend.h"

#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nvllm {

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

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
  // All lines come from one copy of the entries, so that the totals match even while other threads
  // allocate.
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

Buffer::Buffer(void* data, std::size_t bytes, MemoryKind kind, Release release)
    : data_(data), bytes_(bytes), kind_(kind), release_(std::move(release)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(other.kind_),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));  // its destructor releases what this held
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(kind_, taken.kind_);
  std::swap(release_, taken.release_);
  return *this;
}

Buffer::~Buffer() {
  if (release_) release_(data_);
}

void* Arena::allocate(std::size_t bytes, const char* purpose) {
  const std::size_t left = capacity() - used_;
  if (bytes > left) {
    fail("asked ", format_bytes(bytes), " for '", purpose, "' of an arena of ",
         format_bytes(capacity()), " of ", name_of(buffer_.kind()), " memory with ",
         format_bytes(left), " left; size the arena for it");
  }
  void* part = static_cast<char*>(buffer_.data()) + used_;
  // Rounded up, but not past the end: a capacity need not be a multiple of the alignment.
  used_ += rounded(bytes) < left ? rounded(bytes) : left;
  return part;
}

std::unique_ptr<Backend> create_backend(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu::create_backend() : cuda::create_backend();
}

#ifndef NVLLM_CUDA
bool cuda_built() {
  return false;
}

std::unique_ptr<Backend> cuda::create_backend() {
  fail(
      "this program was built without CUDA; install the CUDA toolkit and build again, or use the "
      "CPU");
}
#endif

}  // namespace nvllm
