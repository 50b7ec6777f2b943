#include "device/backend.h"

#include <utility>

#include "base/error.h"
#include "device/cpu/backend.h"
#include "device/cuda/backend.h"

namespace nvllm {

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

Buffer::Buffer(void* data, std::size_t bytes, MemoryKind kind, Release release)
    : data_(data), bytes_(bytes), kind_(kind), release_(std::move(release)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(other.kind_),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));  // releases what this held when it leaves
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
  // Rounded up, but never beyond the end: a capacity need not be a multiple of the alignment.
  used_ += rounded(bytes) < left ? rounded(bytes) : left;
  return part;
}

std::unique_ptr<Backend> create_backend(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu::create_backend() : cuda::create_backend();
}

}  // namespace nvllm
