// How kernels on several GPUs hand each other data with no flag, fence or barrier.
//
// Words. Data travels in words of 16 bytes, each written by one store of the sender straight into
// the receiver's memory. Of the four 32-bit parts of a word at rest, each is kEmpty, the bits of
// -0.0f. A word is complete when those parts that cannot be data are no longer kEmpty:
//   floats  all four parts are data; the sender turns -0 into +0, also in 16-bit elements, so no
//   part
//           of its data is kEmpty.
//   bytes   parts 0 and 2 are data, any bits; parts 1 and 3 are 1.
// Parts of 32 bits (floats) or pairs of 64 bits (bytes) may become visible in any order; a word
// counts only when it is complete, and every word is complete in itself, so no order between words
// is needed.
//
// Areas. A rank's receive memory has two areas; call k uses area k % 2. Exactly one thread reads a
// word, and when it is complete puts kEmpty back at once. Why nobody ever overwrites an unread
// word, or has a word of his wiped out:
//   1. Every call is a full handshake: each rank sends at least one word to each other rank, and
//   its
//      kernel does not end before it has read every word that was sent to it in that call.
//   2. Say p writes into r's area in call k + 2. Its kernel k + 1 ended before, so it has read a
//   word that
//      r sent in call k + 1. Then r's kernel k + 1 had begun, so r's kernel k had ended, in stream
//      order, with all its reading and all its wiping of that area done.
// So: kernels of one communicator never overlap on a GPU (no programmatic dependent launch without
// a wait before the first send); calls of no elements send a word of padding; who has nothing to
// say sends a token. With one area p's call k + 1 could meet r's call k.
//
// The number of the call lies in device memory (a graph is replayed with the same arguments). The
// block that is last to have read it writes the next one.
//
// Deadline. Who waits looks at the clock now and then. When time is up, or the host asks for it,
// `failed` is set, and no thread waits or sends any more: the kernel ends, its results are void,
// the host reports.
#pragma once

#include "ipc/collective/peer_links.h"
#include "kernels/cuda/types.cuh"

namespace nvllm::ipc::peer {

using kernels::narrow;
using kernels::Vector;
using kernels::widen;

inline constexpr unsigned kEmpty = 0x80000000u;
inline constexpr std::size_t kAreaWords = kAreaBytes / sizeof(uint4);

// --- words
// -------------------------------------------------------------------------------------------

__device__ __forceinline__ uint4 peek(const uint4* word) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(word)
               : "memory");
  return value;
}

__device__ __forceinline__ void put(uint4* word, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(word), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void wipe(uint4* word) {
  put(word, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
}

// The two ways to tell a complete word.
struct Floats {
  static __device__ __forceinline__ bool complete(const uint4& v) {
    return v.x != kEmpty && v.y != kEmpty && v.z != kEmpty && v.w != kEmpty;
  }
};
struct Bytes {
  static __device__ __forceinline__ bool complete(const uint4& v) {
    return v.y != kEmpty && v.w != kEmpty;
  }
  static __device__ __forceinline__ uint4 encode(const uint2& data) {
    return make_uint4(data.x, 1, data.y, 1);
  }
};

__device__ __forceinline__ unsigned without_negative_zero(float, unsigned bits) {
  return bits == 0x80000000u ? 0u : bits;
}
// Two elements at once.
template <typename T>
__device__ __forceinline__ unsigned without_negative_zero(T, unsigned bits) {
  return bits & ~__vcmpeq2(bits, 0x80008000u);
}

// Elements as they travel: no -0.
template <typename T>
__device__ __forceinline__ uint4 to_word(const Vector<T>& vector) {
  const uint4 bits = *reinterpret_cast<const uint4*>(&vector);
  return make_uint4(without_negative_zero(T{}, bits.x), without_negative_zero(T{}, bits.y),
                    without_negative_zero(T{}, bits.z), without_negative_zero(T{}, bits.w));
}

template <typename T>
__device__ __forceinline__ Vector<T> to_vector(const uint4& word) {
  return *reinterpret_cast<const Vector<T>*>(&word);
}

// --- places
// ------------------------------------------------------------------------------------------

// Among the senders to `receiver`, the place of `sender`: 0 to ranks - 2.
__device__ __forceinline__ int seat(int receiver, int sender, int ranks) {
  const int distance = sender - receiver - 1;
  return distance < 0 ? distance + ranks : distance;
}

__device__ __forceinline__ int nth_peer(int rank, int n, int ranks) {  // n: 1 to ranks - 1
  const int peer = rank + n;
  return peer < ranks ? peer : peer - ranks;
}

// --- a call
// ------------------------------------------------------------------------------------------

struct Call {
  unsigned number;
  bool failed;       // before this kernel began
  std::size_t area;  // where this call's area begins in every rank's memory, in words
};

// First of all in a kernel, by every thread.
__device__ __forceinline__ Call begin(const Links& links) {
  const uint4 control = peek(reinterpret_cast<const uint4*>(links.control));
  return {control.x, control.y != 0, (control.x % kAreas) * kAreaWords};
}

// Once per kernel, by every thread of every block, at any time after begin(); it holds a
// __syncthreads(). Best after the sends, so that it passes while they travel.
__device__ __forceinline__ void advance(const Links& links, const Call& call) {
  // All threads of this block have read the control block: the barrier takes what they read as its
  // input.
  __syncthreads_or(call.failed);
  if (threadIdx.x != 0) return;
  if (atomicAdd(&links.control->ticket, 1u) == gridDim.x - 1) {
    links.control->ticket = 0;
    links.control->call = call.number + 1;
  }
}

__device__ __forceinline__ uint4* box(const Links& links, const Call& call, int rank) {
  return static_cast<uint4*>(links.boxes[rank]) + call.area;
}

__device__ __forceinline__ unsigned long long global_time_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// One look at the clock by a thread that waits for `sender`. True: stop waiting.
static __device__ __noinline__ bool give_up(const Links& links, unsigned call, int sender,
                                            unsigned long long* waiting_since) {
  constexpr unsigned long long kLookEvery = 1'000'000;  // reading host memory crosses PCIe
  Control* control = links.control;
  volatile Report* report = links.report;
  const unsigned long long now = global_time_ns();
  if (*waiting_since == 0) *waiting_since = now;
  if (*reinterpret_cast<volatile std::uint32_t*>(&control->failed) != 0) return true;

  unsigned state = Report::none;
  auto* next_look = reinterpret_cast<unsigned long long*>(&control->next_look);
  const unsigned long long due = *reinterpret_cast<volatile unsigned long long*>(next_look);
  if (now - *waiting_since >= links.deadline_ns) {
    state = Report::timed_out;
  } else if (now >= due && atomicCAS(next_look, due, now + kLookEvery) == due &&
             report->abort != 0) {
    state = Report::aborted;
  }
  if (state == Report::none) return false;
  if (atomicCAS(&control->failed, 0u, 1u) == 0) {
    report->missing_rank = static_cast<std::uint32_t>(sender);
    report->call = call;
    *reinterpret_cast<volatile std::uint32_t*>(&links.report->operation) =
        static_cast<std::uint32_t>(links.operation);
    __threadfence_system();
    report->state = state;
  }
  return true;
}

// Waits until the word is complete and wipes it. `value` is a first look at it, taken earlier.
template <typename Encoding>
__device__ __forceinline__ uint4 receive(const Links& links, const Call& call, uint4* word,
                                         int sender, uint4 value) {
  constexpr unsigned kTurnsPerLook = 1024;
  unsigned long long waiting_since = 0;
  unsigned turn = 0;
  while (!Encoding::complete(value)) {
    if (call.failed) return value;
    if (++turn % kTurnsPerLook == 0 && give_up(links, call.number, sender, &waiting_since)) {
      return value;
    }
    value = peek(word);
  }
  wipe(word);
  return value;
}

// The sum over the ranks of one vector each, as sum_cpu.h defines it: float32, rank order, one
// rounding, no -0. This rank's own comes from registers; the others' words lie at word + seat *
// stride.
template <typename T, int kMaxRanks>
__device__ __forceinline__ Vector<T> receive_sum(const Links& links, const Call& call, uint4* word,
                                                 std::size_t stride, const Vector<T>& own) {
  uint4 words[kMaxRanks];
#pragma unroll
  for (int rank = 0; rank < kMaxRanks; ++rank) {  // all loads at once
    if (rank < links.ranks && rank != links.rank) {
      words[rank] = peek(word + seat(links.rank, rank, links.ranks) * stride);
    }
  }
  kernels::Floats<T> sums{};
#pragma unroll
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (rank >= links.ranks) break;
    Vector<T> part = own;
    if (rank != links.rank) {
      part = to_vector<T>(receive<Floats>(
          links, call, word + seat(links.rank, rank, links.ranks) * stride, rank, words[rank]));
    }
    const kernels::Floats<T> floats = kernels::widen(part);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) {
      sums.element[i] = __fadd_rn(sums.element[i], floats.element[i]);
    }
  }
  return to_vector<T>(to_word(kernels::narrow(sums)));
}

// To the same place in every other rank's memory, but for the seat: word + seat * stride.
template <int kMaxRanks>
__device__ __forceinline__ void send_to_all(const Links& links, const Call& call, std::size_t word,
                                            std::size_t stride, const uint4& value) {
  if (call.failed) return;
#pragma unroll
  for (int n = 1; n < kMaxRanks; ++n) {
    if (n >= links.ranks) break;
    const int peer = nth_peer(links.rank, n, links.ranks);
    put(box(links, call, peer) + word + seat(peer, links.rank, links.ranks) * stride, value);
  }
}

}  // namespace nvllm::ipc::peer
