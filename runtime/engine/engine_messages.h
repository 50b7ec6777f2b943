// What the front end and the engine tell each other beside requests and updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ipc/archive.h"
#include "ipc/ring_layout.h"
#include "runtime/model/model_loading.h"
#include "runtime/request.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

// What the engine came to be.
struct EngineInfo {
  KvMode kv_mode = KvMode::paged;
  std::int64_t max_model_len = 0;
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  std::int64_t resident_blocks = 0;      // chunked: of these, so many may stay on the device
  std::uint64_t kv_bytes_per_token = 0;  // of all ranks together
  std::uint64_t weight_bytes = 0;        // of all ranks together
  std::uint64_t gemm_configs_known = 0, gemm_configs_measured = 0;  // runtime/engine/engine_setup.h
  std::vector<RankLoad> ranks;                                      // memory reports are in there
  std::vector<std::string> notes;  // one line each, for people: "max_model_len is 8192: ..."
  std::int64_t ready_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(kv_mode, max_model_len, blocks, block_size, host_blocks, resident_blocks,
            kv_bytes_per_token, weight_bytes, gemm_configs_known, gemm_configs_measured, ranks,
            notes, ready_ns);
  }
};

struct EngineStatistics {
  SchedulerStatistics scheduler;
  // Of all steps so far, seconds of rank 0.
  double device_busy_s = 0;  // the device had a step to work on
  double host_s = 0;         // scheduling, messages, results: the main thread's own work
  double waiting_s = 0;      // the main thread waited for the device
  std::uint64_t step_message_bytes = 0;
  std::uint64_t prompt_tokens = 0, generated_tokens = 0;
  // Of keys, values and their tokens, of all ranks together, that crossed between host and device;
  // and of keys and values that the host's cores read instead.
  std::uint64_t kv_bytes_to_host = 0, kv_bytes_to_device = 0, kv_bytes_by_host = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(scheduler, device_busy_s, host_s, waiting_s, step_message_bytes, prompt_tokens,
            generated_tokens, kv_bytes_to_host, kv_bytes_to_device, kv_bytes_by_host);
  }
};

// How requests cross the requests ring: as one stream of bytes, cut into parts that fit a slot. So
// a prompt may be of any length, and many short requests share a part.
//
//   RequestPacker packer;                       RequestUnpacker unpacker;
//   packer.add(1, request);               unpacker.take(part, [&](RequestFrame frame) { ... });
//   while (auto part = packer.next()) ...

// One thing that is asked for: a request, or the end of one.
struct RequestFrame {
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
  void put(const RequestFrame& asked);

  ipc::ArchiveWriter frame_;
  std::vector<std::byte> stream_;  // of which `sent_` bytes have been given
  std::size_t sent_ = 0;
};

// Used by one thread.
class RequestUnpacker {
 public:
  using OnFrame = std::function<void(RequestFrame)>;

  // Hands on, in order, what is complete with this part.
  void take(const RequestPart& part, const OnFrame& on_frame);

 private:
  std::vector<std::byte> stream_;  // begins with a frame of which something is still missing
};

}  // namespace nvllm::runtime
