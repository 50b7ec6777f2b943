// Kernels for the sender and the receiver of a hand-over between pipeline stages (hand_over.h).
//
// Only thread 0 of each block waits; the block then copies its share. Blocks of a kernel do not
// wait for each other, so a grid may have any size. Data written by other GPUs is read past L1;
// each thread's fence before the last block's store makes that store the last one to become
// visible.
#include <algorithm>
#include <cstdint>

#include "device/cuda/stream.h"
#include "ipc/collective/peer/hand_over_kernels.h"

namespace nvllm::ipc::peer {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kVectorsOfThread = 4;
constexpr std::int64_t kMaxBlocks = 64;

__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* counter) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(std::uint64_t* counter, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t time_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ LinkCounters* counters(unsigned char* box) {
  return reinterpret_cast<LinkCounters*>(box);
}

__device__ __forceinline__ unsigned char* slot(unsigned char* box, std::uint64_t piece) {
  return box + kLinkHeadBytes + link_slot_of(piece) * kLinkSlotBytes;
}

__device__ bool has_failed(const LinkMemory& link) {
  return *reinterpret_cast<const volatile std::uint32_t*>(&link.control->failed) != 0;
}

// Reports the first failure; describe() fills in the report.
template <typename Describe>
__device__ void fail(const LinkMemory& link, LinkReport::State state, bool sends,
                     std::uint64_t piece, const Describe& describe) {
  if (atomicCAS(&link.control->failed, 0u, 1u) != 0) return;
  volatile LinkReport* const report = link.report;
  report->sends = sends ? 1 : 0;
  report->piece = piece;
  describe(report);
  __threadfence_system();
  report->state = state;
}

// Checks the deadline (the wait started at `since`) and, at intervals, the host's abort flag, which
// must be read over PCIe. False: stop waiting.
__device__ __noinline__ bool may_wait(const LinkMemory& link, std::uint64_t since, bool sends,
                                      std::uint64_t piece) {
  constexpr std::uint64_t kLookEvery = 1'000'000;
  if (has_failed(link)) return false;
  const std::uint64_t now = time_ns();
  LinkReport::State state = LinkReport::none;
  auto* const next_look = reinterpret_cast<unsigned long long*>(&link.control->next_look);
  const unsigned long long due = *reinterpret_cast<volatile unsigned long long*>(next_look);
  if (now - since >= link.deadline_ns) {
    state = LinkReport::timed_out;
  } else if (now >= due && atomicCAS(next_look, due, now + kLookEvery) == due &&
             *reinterpret_cast<volatile std::uint32_t*>(&link.report->abort) != 0) {
    state = LinkReport::aborted;
  }
  if (state == LinkReport::none) return true;
  fail(link, state, sends, piece, [](volatile LinkReport*) {});
  return false;
}

// Waits until the counter, in this GPU's memory, reaches `wanted`. False: it gave up.
__device__ bool await(const LinkMemory& link, const std::uint64_t* counter, std::uint64_t wanted,
                      bool sends, std::uint64_t piece) {
  constexpr unsigned kPollsPerLook = 64;
  if (has_failed(link)) return false;
  std::uint64_t since = 0;
  for (unsigned polls = 1; load_acquire(counter) < wanted; ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    if (since == 0) since = time_ns();
    if (!may_wait(link, since, sends, piece)) return false;
  }
  return true;
}

// Copies this block's share of a piece. from: read past L1.
__device__ void copy_share(unsigned char* to, const unsigned char* from, std::uint64_t bytes) {
  const std::uint64_t first = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) %
          sizeof(uint4) ==
      0;
  const std::uint64_t vectors = aligned ? bytes / sizeof(uint4) : 0;
  for (std::uint64_t i = first; i < vectors; i += step * kVectorsOfThread) {
    uint4 values[kVectorsOfThread];
#pragma unroll
    for (int k = 0; k < kVectorsOfThread; ++k) {
      if (i + k * step < vectors) {
        values[k] = __ldcg(reinterpret_cast<const uint4*>(from) + i + k * step);
      }
    }
#pragma unroll
    for (int k = 0; k < kVectorsOfThread; ++k) {
      if (i + k * step < vectors) reinterpret_cast<uint4*>(to)[i + k * step] = values[k];
    }
  }
  for (std::uint64_t i = vectors * sizeof(uint4) + first; i < bytes; i += step) {
    to[i] = __ldcg(from + i);
  }
}

// Whether this block is the last of the grid to finish its share, so that all shares are done.
// Contains a __syncthreads(); the result is valid in thread 0.
__device__ bool is_last_block(std::uint32_t* ticket) {
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(ticket, 1u) != gridDim.x - 1) return false;
  *ticket = 0;
  __threadfence_system();
  return true;
}

__global__ void __launch_bounds__(kThreads)
    send_piece(const __grid_constant__ LinkMemory link, const unsigned char* data,
               std::uint64_t bytes, std::uint64_t tensor_bytes) {
  __shared__ std::uint64_t piece;
  __shared__ bool go;
  if (threadIdx.x == 0) {
    piece = *reinterpret_cast<volatile std::uint64_t*>(&link.control->sent);
    go = await(link, &counters(link.own)->from_next.taken, needed_before_send(piece), true, piece);
  }
  __syncthreads();
  if (!go) return;
  copy_share(slot(link.next, piece), data, bytes);
  if (!is_last_block(&link.control->send_ticket)) return;
  link.control->sent = piece + 1;
  auto& there = counters(link.next)->from_previous;
  *reinterpret_cast<volatile std::uint64_t*>(&there.bytes[link_slot_of(piece)]) = tensor_bytes;
  store_release(&there.arrived, piece + 1);
}

__global__ void __launch_bounds__(kThreads)
    receive_piece(const __grid_constant__ LinkMemory link, unsigned char* data, std::uint64_t bytes,
                  std::uint64_t tensor_bytes) {
  __shared__ std::uint64_t piece;
  __shared__ bool go;
  auto& here = counters(link.own)->from_previous;
  if (threadIdx.x == 0) {
    piece = *reinterpret_cast<volatile std::uint64_t*>(&link.control->received);
    go = await(link, &here.arrived, piece + 1, false, piece);
    if (go) {
      const std::uint64_t sent =
          *reinterpret_cast<volatile std::uint64_t*>(&here.bytes[link_slot_of(piece)]);
      go = sent == tensor_bytes;
      if (!go) {
        fail(link, LinkReport::mismatched, false, piece, [&](volatile LinkReport* report) {
          report->bytes = sent;
          report->expected = tensor_bytes;
        });
      }
    }
  }
  __syncthreads();
  if (!go) return;
  copy_share(data, slot(link.own, piece), bytes);
  if (!is_last_block(&link.control->receive_ticket)) return;
  link.control->received = piece + 1;
  store_release(&counters(link.previous)->from_next.taken, piece + 1);
}

dim3 grid_for(std::size_t bytes) {
  constexpr std::int64_t kBlock = kThreads * kVectorsOfThread * sizeof(uint4);
  const std::int64_t blocks = (static_cast<std::int64_t>(bytes) + kBlock - 1) / kBlock;
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks)));
}

}  // namespace

void launch_send_piece(const LinkMemory& link, const void* data, std::size_t bytes,
                       std::size_t tensor_bytes, cudaStream_t stream) {
  send_piece<<<grid_for(bytes), kThreads, 0, stream>>>(
      link, static_cast<const unsigned char*>(data), bytes, tensor_bytes);
  cuda::check(cudaGetLastError(), "launching a send to the next stage");
}

void launch_receive_piece(const LinkMemory& link, void* data, std::size_t bytes,
                          std::size_t tensor_bytes, cudaStream_t stream) {
  receive_piece<<<grid_for(bytes), kThreads, 0, stream>>>(link, static_cast<unsigned char*>(data),
                                                          bytes, tensor_bytes);
  cuda::check(cudaGetLastError(), "launching a receive from the stage before");
}

}  // namespace nvllm::ipc::peer
