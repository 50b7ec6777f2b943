// How the threads of the CPU backend share the work of an operation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/stream.h"
#include "device/cpu/thread_pool.h"

namespace nvllm::kernels {

// Enqueues job(begin, end) for ranges that partition [0, tasks), of at least `grain` tasks each.
template <typename Job>
void submit_tasks(Stream& stream, std::int64_t tasks, const Job& job, std::int64_t grain = 1) {
  nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
  queue.submit([job, tasks, grain, &pool = queue.thread_pool()] { pool.run(tasks, grain, job); });
}

// A part smaller than this is done before another thread is awake.
inline constexpr std::int64_t kMinPartBytes = 64 << 10;

// The same for rows, each of which reads and writes row_bytes bytes.
template <typename Job>
void submit_rows(Stream& stream, std::int64_t rows, std::int64_t row_bytes, const Job& job) {
  submit_tasks(stream, rows, job, kMinPartBytes / std::max<std::int64_t>(row_bytes, 1) + 1);
}

}  // namespace nvllm::kernels
