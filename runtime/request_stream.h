// How requests cross the requests ring: as one stream of bytes, cut into parts that fit a slot. So a
// prompt may be of any length, and many short requests share a part.
//
//   RequestPacker packer;                       RequestUnpacker unpacker;
//   packer.add(1, request);                     unpacker.take(part, [&](Asked asked) { ... });
//   while (auto part = packer.next()) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ipc/archive.h"
#include "ipc/ring_layout.h"
#include "runtime/request.h"

namespace nvllm::runtime {

// One thing that is asked for: a request, or the end of one.
struct Asked {
  std::uint64_t id = 0;
  bool abort = false;
  Request request;  // unless it is an abort

  template <class Archive>
  void serialize(Archive& archive) {
    archive(id, abort);
    if (!abort) archive(request);
  }
};

// A part as the ring carries it.
struct RequestPart {
  std::vector<std::byte> bytes;
  bool more = false;  // others are waiting to be sent

  template <class Archive>
  void serialize(Archive& archive) {
    archive(bytes, more);
  }
};

// Used by one thread.
class RequestPacker {
 public:
  // Of a part's bytes at most: together with the call around it, it fits one slot.
  static constexpr std::size_t kPartBytes = ipc::kRequestsShape.slot_bytes - 128;

  void add(std::uint64_t id, const Request& request);
  void abort(std::uint64_t id);

  std::size_t waiting_bytes() const { return stream_.size() - sent_; }
  // The next part, as full as it can be. Nothing: all have been given.
  std::optional<RequestPart> next();

 private:
  void put(const Asked& asked);

  ipc::ArchiveWriter frame_;
  std::vector<std::byte> stream_;  // of which `sent_` bytes have been given
  std::size_t sent_ = 0;
};

// Used by one thread.
class RequestUnpacker {
 public:
  using OnAsked = std::function<void(Asked)>;

  // Hands on, in order, what is complete with this part.
  void take(const RequestPart& part, const OnAsked& on_asked);

 private:
  std::vector<std::byte> stream_;  // begins with a frame of which something is still missing
};

}  // namespace nvllm::runtime
