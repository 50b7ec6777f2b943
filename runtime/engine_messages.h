// What the front end and the engine tell each other beside requests and updates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model_messages.h"
#include "runtime/request.h"
#include "runtime/scheduler.h"

namespace nvllm::runtime {

// What the engine came to be.
struct EngineInfo {
  KvMode kv_mode = KvMode::paged;
  std::int64_t max_model_len = 0;
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  std::int64_t resident_blocks = 0;      // chunked: of these, so many may stay on the device
  std::uint64_t kv_bytes_per_token = 0;  // of all ranks together
  std::uint64_t weight_bytes = 0;        // of all ranks together
  std::uint64_t products_known = 0, products_measured = 0;  // runtime/engine_products.h
  std::vector<RankLoad> ranks;                              // memory reports are in there
  std::vector<std::string> notes;  // one line each, for people: "max_model_len is 8192: ..."
  std::int64_t ready_ns = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(kv_mode, max_model_len, blocks, block_size, host_blocks, resident_blocks,
            kv_bytes_per_token, weight_bytes, products_known, products_measured, ranks, notes,
            ready_ns);
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
  // Of keys, values and their tokens, of all ranks together, that crossed between host and device; and of keys
  // and values that the host's cores read instead.
  std::uint64_t kv_bytes_to_host = 0, kv_bytes_to_device = 0, kv_bytes_by_host = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(scheduler, device_busy_s, host_s, waiting_s, step_message_bytes, prompt_tokens,
            generated_tokens, kv_bytes_to_host, kv_bytes_to_device, kv_bytes_by_host);
  }
};

}  // namespace nvllm::runtime
