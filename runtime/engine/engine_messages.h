// Messages between the front end and the engine: EngineInfo and EngineStatistics, which the engine
// returns, and the request stream, which carries requests and aborts to it. Requests and updates
// themselves are in runtime/request.h.
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

// How the engine was set up: the result of open().
struct EngineInfo {
  KvMode kv_mode = KvMode::paged;
  std::int64_t max_model_len = 0;
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  std::int64_t resident_blocks = 0;  // chunked mode: how many of the blocks may stay on the device
  // Blocks of the window group, if layers with a sliding window form one; `blocks` counts the
  // others.
  std::int64_t window_blocks = 0, host_window_blocks = 0;
  bool prefix_caching = false;
  // Linear attention: state snapshots on the device; sequences whose states fit in swap space.
  std::int64_t state_snapshots = 0, host_states = 0;
  std::uint64_t kv_bytes_per_token = 0;                             // sum over all ranks and layers
  std::uint64_t weight_bytes = 0;                                   // sum over all ranks
  std::uint64_t gemm_configs_known = 0, gemm_configs_measured = 0;  // on rank 0
  std::vector<RankLoad> ranks;                                      // with their memory reports
  std::vector<std::string> notes;  // messages for the user, one line each: "max_model_len is 8192:
                                   // ..."
  std::int64_t ready_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(kv_mode, max_model_len, blocks, block_size, host_blocks, resident_blocks, window_blocks,
            host_window_blocks, prefix_caching, state_snapshots, host_states, kv_bytes_per_token,
            weight_bytes, gemm_configs_known, gemm_configs_measured, ranks, notes, ready_ns);
  }
};

struct EngineStatistics {
  SchedulerStatistics scheduler;
  // Seconds on rank 0, summed over all steps so far.
  double device_busy_s = 0;  // its device had a step to run
  double host_s = 0;         // its main thread scheduled steps and handled messages and results
  double waiting_s = 0;      // its main thread waited for the device
  std::uint64_t step_message_bytes = 0;
  std::uint64_t prompt_tokens = 0, generated_tokens = 0;
  // KV cache bytes, summed over all ranks: copied between host and device, and read in host memory
  // by the CPU.
  std::uint64_t kv_bytes_to_host = 0, kv_bytes_to_device = 0, kv_bytes_by_host = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(scheduler, device_busy_s, host_s, waiting_s, step_message_bytes, prompt_tokens,
            generated_tokens, kv_bytes_to_host, kv_bytes_to_device, kv_bytes_by_host);
  }
};

// The request stream: requests and aborts cross the requests ring as one stream of bytes, cut into
// parts that fit a slot of the ring. So a prompt may have any length, and many short requests share
// a part.
//
//   RequestPacker packer;                    RequestUnpacker unpacker;
//   packer.add(1, request);                  unpacker.unpack(part, [&](RequestFrame frame) {...});
//   while (auto part = packer.next()) ...

// A request, or an abort of a request.
struct RequestFrame {
  std::uint64_t id = 0;
  bool abort = false;
  Request request;  // empty for an abort

  template <class Archive>
  void serialize(Archive& archive) {
    archive(id, abort);
    if (!abort) archive(request);
  }
};

// A part of the stream, which fits one slot of the ring.
struct RequestChunk {
  std::vector<std::byte> bytes;
  bool more = false;  // more parts will follow

  template <class Archive>
  void serialize(Archive& archive) {
    archive(bytes, more);
  }
};

// Used by one thread.
class RequestPacker {
 public:
  // Maximum bytes of a part: with the enclosing call it fits one slot.
  static constexpr std::size_t kPartBytes = ipc::kRequestsShape.slot_bytes - 128;

  void add(std::uint64_t id, const Request& request);
  void abort(std::uint64_t id);

  std::size_t waiting_bytes() const { return stream_.size() - sent_; }
  // The next part, as full as possible; nullopt if no bytes are pending.
  std::optional<RequestChunk> next();

 private:
  void append_frame(const RequestFrame& frame);

  ipc::ArchiveWriter archive_;     // one frame; kept to reuse its memory
  std::vector<std::byte> stream_;  // next() has returned its first sent_ bytes
  std::size_t sent_ = 0;
};

// Used by one thread.
class RequestUnpacker {
 public:
  using OnFrame = std::function<void(RequestFrame)>;

  // Calls on_frame, in order, for each frame that this part completes.
  void unpack(const RequestChunk& part, const OnFrame& on_frame);

 private:
  std::vector<std::byte> stream_;  // starts with an incomplete frame
};

}  // namespace nvllm::runtime
