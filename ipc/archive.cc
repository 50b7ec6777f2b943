#include "ipc/archive.h"

#include <algorithm>

#include "base/error.h"

namespace nvllm::ipc {

void ArchiveWriter::clear() {
  size_ = 0;
  write(kArchiveVersion);
}

void ArchiveWriter::grow(std::size_t bytes) {
  const std::size_t capacity = std::max<std::size_t>({256, 2 * capacity_, size_ + bytes});
  auto buffer = std::make_unique_for_overwrite<std::byte[]>(capacity);
  if (size_ != 0) std::memcpy(buffer.get(), buffer_.get(), size_);
  buffer_ = std::move(buffer);
  capacity_ = capacity;
}

ArchiveReader::ArchiveReader(std::span<const std::byte> bytes) : left_(bytes) {
  const auto version = get<std::uint32_t>();
  if (version != kArchiveVersion) {
    fail("message of version 0x", std::hex, version, ", this program speaks version 0x",
         kArchiveVersion, "; run the same build in all processes");
  }
}

void ArchiveReader::finish() const {
  if (!left_.empty()) fail("message has ", left_.size(), " bytes more than its types ask for");
}

std::size_t ArchiveReader::read_size(std::size_t bytes_per_element) {
  const auto size = get<std::uint64_t>();
  if (size > left_.size() / bytes_per_element) {
    fail("message claims ", size, " elements of at least ", bytes_per_element, " bytes, but only ",
         left_.size(), " bytes are left");
  }
  return static_cast<std::size_t>(size);
}

const std::byte* ArchiveReader::take(std::size_t bytes) {
  if (bytes > left_.size()) {
    fail("message ends early: ", bytes, " bytes wanted, ", left_.size(), " left");
  }
  const std::byte* start = left_.data();
  left_ = left_.subspan(bytes);
  return start;
}

void ArchiveReader::read(bool& value) {
  const auto byte = get<std::uint8_t>();
  if (byte > 1) fail("message holds ", int{byte}, " where a bool should be");
  value = byte != 0;
}

void ArchiveReader::fail_too_deep() {
  fail("message is nested too deep");
}

}  // namespace nvllm::ipc
