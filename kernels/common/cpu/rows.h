// Sharing the rows of an operation over the threads of the CPU backend.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/stream.h"
#include "device/cpu/thread_pool.h"

namespace nvllm::kernels {

// A part smaller than this is done before another thread is awake.
inline constexpr std::int64_t kMinPartBytes = 64 << 10;

// Enqueues job(begin, end) for ranges that make up [0, rows). row_bytes: what a row reads and
// writes.
template <typename Job>
void submit_rows(Stream& stream, std::int64_t rows, std::int64_t row_bytes, const Job& job) {
  nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
  const std::int64_t grain = kMinPartBytes / std::max<std::int64_t>(row_bytes, 1) + 1;
  queue.submit([job, rows, grain, &pool = queue.thread_pool()] { pool.run(rows, grain, job); });
}

}  // namespace nvllm::kernels
