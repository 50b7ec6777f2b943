#include "runtime/engine/engine_messages.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace nvllm::runtime {
namespace {

// Frame format of the stream: the number of bytes that follow, then an archive of a RequestFrame.
using FrameLength = std::uint64_t;

void append(std::vector<std::byte>& stream, const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  stream.insert(stream.end(), begin, begin + bytes);
}

}  // namespace

void RequestPacker::add(std::uint64_t id, const Request& request) {
  append_frame({.id = id, .abort = false, .request = request});
}

void RequestPacker::abort(std::uint64_t id) {
  append_frame({.id = id, .abort = true, .request = {}});
}

void RequestPacker::append_frame(const RequestFrame& frame) {
  archive_.clear();
  archive_(frame);
  const FrameLength length = archive_.bytes().size();
  append(stream_, &length, sizeof length);
  append(stream_, archive_.bytes().data(), archive_.bytes().size());
}

std::optional<RequestChunk> RequestPacker::next() {
  const std::size_t bytes = std::min(kPartBytes, waiting_bytes());
  if (bytes == 0) return {};
  RequestChunk part;
  append(part.bytes, stream_.data() + sent_, bytes);
  sent_ += bytes;
  part.more = waiting_bytes() > 0;
  // Sent bytes are removed only when they are half of the buffer, so each byte moves once or twice.
  if (2 * sent_ >= stream_.size()) {
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  return part;
}

void RequestUnpacker::unpack(const RequestChunk& part, const OnFrame& on_frame) {
  append(stream_, part.bytes.data(), part.bytes.size());
  std::span<const std::byte> left = stream_;
  while (left.size() >= sizeof(FrameLength)) {
    FrameLength length = 0;
    std::memcpy(&length, left.data(), sizeof length);
    if (left.size() - sizeof length < length) break;
    ipc::ArchiveReader archive(left.subspan(sizeof length, length));
    auto frame = archive.get<RequestFrame>();
    archive.finish();
    left = left.subspan(sizeof length + length);
    on_frame(std::move(frame));
  }
  stream_.erase(stream_.begin(), stream_.end() - static_cast<std::ptrdiff_t>(left.size()));
}

}  // namespace nvllm::runtime
