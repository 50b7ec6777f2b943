// How kernels on several GPUs exchange data without flags, fences or barriers.
//
// Words. Data is sent in words of 16 bytes, each written by one store of the sender directly into
// the receiver's memory. In an empty word, each of the four 32-bit parts is kEmpty, the bits of
// -0.0f. A word is complete when the parts that cannot be kEmpty as data are no longer kEmpty:
//   floats  all four parts are data; the sender turns -0 into +0, also in 16-bit elements, so no
//           part of its data is kEmpty.
//   bytes   parts 0 and 2 are data, any bits; parts 1 and 3 are 1.
// Parts of 32 bits (floats) or pairs of 64 bits (bytes) may become visible in any order; a word is
// used only when it is complete, and each word is checked separately, so no order between words is
// needed.
//
// Areas. A rank's receive memory has two areas; call k uses area k % 2. Exactly one thread reads a
// word, and resets it to kEmpty as soon as it is complete. Why no unread word is overwritten, and
// no newly written word reset:
//   1. Every call is a full handshake: each rank sends at least one word to each other rank, and
//      its kernel does not end before it has read every word that was sent to it in that call.
//   2. Suppose p writes to r's area in call k + 2. Its kernel k + 1 has ended, so it has read a
//      word that r sent in call k + 1. So r's kernel k + 1 had started, and in stream order r's
//      kernel k had ended, with all its reads and resets in that area done.
// This requires that kernels of one communicator never overlap in their memory accesses on a GPU,
// that calls without elements send a word of padding, and that a rank without data sends a token.
// With a single area, p's call k + 1 could collide with r's call k.
//
// Programmatic dependent launch. From compute capability 9.0 on, a kernel may occupy its
// multiprocessors before the previous one in the stream has ended. Both rules still hold: begin()
// executes griddepcontrol.wait, which returns when the previous grid has ended and its writes are
// visible, before it reads the control block, and no memory is accessed earlier. It launches the
// dependent kernel only after that wait, so at most two kernels are resident, one of them waiting.
// The dependent kernel starts when all blocks of this one have triggered it, hence all are running,
// and it takes no resources that they need.
//
// The number of the call is in device memory (a graph is replayed with the same arguments). The
// last block to read it writes the next one.
//
// Deadline. Waiting threads check the clock at intervals. When the time is up, or the host requests
// it, `failed` is set, and no thread waits or sends any more: the kernel ends (after a timeout, if
// Links::holds_after_timeout, only when the host gives up), its results are undefined, and the host
// reports the error.
#pragma once

#include "ipc/collective/peer/peer_kernels.h"
#include "kernels/common/sm80/types.cuh"

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

// The test for a complete word, for each of the two encodings.
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

// Adds +0, which changes no number but -0.
__device__ __forceinline__ unsigned without_negative_zero(float, unsigned bits) {
  return __float_as_uint(__fadd_rn(__uint_as_float(bits), 0.0f));
}
// Two elements at once.
__device__ __forceinline__ unsigned without_negative_zero(Bf16, unsigned bits) {
  constexpr unsigned kOnes = 0x3f803f80u;  // compute capability 8.0 has no plain add
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(bits) : "r"(kOnes), "r"(0));
  return bits;
}
__device__ __forceinline__ unsigned without_negative_zero(F16, unsigned bits) {
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(bits) : "r"(0));
  return bits;
}

// Elements in the form in which they are sent: without -0.
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

// --- positions
// ------------------------------------------------------------------------------------------

// The index of `sender` among the senders to `receiver`, in rank order.
__device__ __forceinline__ int seat(int receiver, int sender) {
  return sender < receiver ? sender : sender - 1;
}
__device__ __forceinline__ int sender_at(int receiver, int seat) {
  return seat < receiver ? seat : seat + 1;
}

// Kernels are compiled for exactly 2, 3 and 4 ranks, and for up to 8.
template <int kRanks>
__device__ __forceinline__ int ranks_of(const Links& links) {
  return kRanks <= 4 ? kRanks : links.ranks;
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
  std::size_t area;  // set before this kernel started
};

// Parameters are in constant memory, where the first access to a line is slow: this prefetches them
// before the previous kernel has ended.
template <typename Params>
__device__ __forceinline__ void fetch_parameters(const Params& params) {
  static_assert(sizeof(Params) % sizeof(unsigned) == 0);
  constexpr int kLine = 32 / sizeof(unsigned);
  const auto* words = reinterpret_cast<const unsigned*>(&params);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Params) / sizeof(unsigned)); i += kLine) {
    asm volatile("" ::"r"(words[i]));
  }
}

// Call with every thread before anything that accesses global memory.
template <typename Params>
__device__ __forceinline__ Call begin(const Links& links, const Params& params) {
  fetch_parameters(links);
  fetch_parameters(params);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  const uint4 control = peek(reinterpret_cast<const uint4*>(links.control));
  return {control.x, control.y != 0, (control.x % kAreas) * kAreaWords};
}

// Call once per kernel with every thread of every block, after begin(); contains a __syncthreads().
// Best called after the sends, to overlap with their latency.
__device__ __forceinline__ void advance(const Links& links, const Call& call) {
  // All threads of this block have read the control block: the barrier depends on the values they
  // read.
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

// Checks the clock in a thread that waits for `sender`. Returns when the wait started
// (`waiting_since`, unless that is 0: not yet known), or 0: stop waiting.
static __device__ __noinline__ unsigned long long look_at_clock(const Links& links, unsigned call,
                                                                int sender,
                                                                unsigned long long waiting_since) {
  constexpr unsigned long long kLookEvery = 1'000'000;  // reading host memory crosses PCIe
  Control* control = links.control;
  volatile Report* report = links.report;
  const unsigned long long now = global_time_ns();
  if (waiting_since == 0) waiting_since = now;
  if (*reinterpret_cast<volatile std::uint32_t*>(&control->failed) != 0) return 0;

  unsigned state = Report::none;
  auto* next_look = reinterpret_cast<unsigned long long*>(&control->next_look);
  const unsigned long long due = *reinterpret_cast<volatile unsigned long long*>(next_look);
  if (now - waiting_since >= links.deadline_ns) {
    state = Report::timed_out;
  } else if (now >= due && atomicCAS(next_look, due, now + kLookEvery) == due &&
             report->abort != 0) {
    state = Report::aborted;
  }
  if (state == Report::none) return waiting_since;
  if (atomicCAS(&control->failed, 0u, 1u) == 0) {
    report->missing_rank = static_cast<std::uint32_t>(sender);
    report->call = call;
    *reinterpret_cast<volatile std::uint32_t*>(&links.report->operation) =
        static_cast<std::uint32_t>(links.operation);
    __threadfence_system();
    report->state = state;
    while (links.holds_after_timeout != 0 && report->abort == 0) __nanosleep(100'000);
  }
  return 0;
}

// Receives the words at word + i * stride for which expected(i) holds: waits until they are
// complete and resets them. sender(i): the rank to name if that takes too long.
template <typename Encoding, int kWords, typename Expected, typename Sender>
__device__ __forceinline__ void receive_words(const Links& links, const Call& call, uint4* word,
                                              std::size_t stride, uint4 (&words)[kWords],
                                              const Expected& expected, const Sender& sender) {
  constexpr unsigned kPollsPerLook = 64;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {  // the first loads, all in flight together
    if (expected(i)) words[i] = peek(word + i * stride);
  }
  if (call.failed) return;
  unsigned long long waiting_since = 0;
  unsigned polls = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (!expected(i)) continue;
    while (!Encoding::complete(words[i])) {
      if (++polls % kPollsPerLook == 0) {
        waiting_since = look_at_clock(links, call.number, sender(i), waiting_since);
        if (waiting_since == 0) return;
      }
      words[i] = peek(word + i * stride);
#pragma unroll
      for (int later = i + 1; later < kWords; ++later) {  // in the same poll
        if (expected(later) && !Encoding::complete(words[later])) {
          words[later] = peek(word + later * stride);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (expected(i)) wipe(word + i * stride);
  }
}

// The words of all seats at word + seat * stride, except seats without a bit in `wanted`.
template <typename Encoding, int kRanks>
__device__ __forceinline__ void receive(const Links& links, const Call& call, uint4* word,
                                        std::size_t stride, unsigned wanted,
                                        uint4 (&words)[kRanks - 1]) {
  receive_words<Encoding>(
      links, call, word, stride, words,
      [&](int seat) { return (wanted >> seat & 1) != 0 && seat < ranks_of<kRanks>(links) - 1; },
      [&](int seat) { return sender_at(links.rank, seat); });
}
inline constexpr unsigned kAllSeats = ~0u;

// The sum over the ranks of one vector each, as defined by sum_cpu() in copy_methods.h: float32,
// rank order, one rounding, no -0.
template <typename T, int kRanks>
__device__ __forceinline__ Vector<T> sum_of(const Links& links, const Vector<T>& own,
                                            const uint4 (&words)[kRanks - 1]) {
  const uint4 mine = *reinterpret_cast<const uint4*>(&own);
  kernels::Floats<T> sums;
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank >= ranks_of<kRanks>(links)) break;
    uint4 part = mine;
    if (rank < kRanks - 1 && rank < links.rank) part = words[rank < kRanks - 1 ? rank : 0];
    if (rank > 0 && rank > links.rank) part = words[rank > 0 ? rank - 1 : 0];
    const kernels::Floats<T> addends = kernels::widen(to_vector<T>(part));
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) {
      // The first term is not added to 0, which would turn -0 into +0; the conversion below does
      // that.
      sums.element[i] =
          rank == 0 ? addends.element[i] : __fadd_rn(sums.element[i], addends.element[i]);
    }
  }
  return to_vector<T>(to_word(kernels::narrow(sums)));
}

// This rank's own part is in registers; the others' words are at word + seat * stride.
template <typename T, int kRanks>
__device__ __forceinline__ Vector<T> receive_sum(const Links& links, const Call& call, uint4* word,
                                                 std::size_t stride, const Vector<T>& own) {
  uint4 words[kRanks - 1];
  receive<Floats, kRanks>(links, call, word, stride, kAllSeats, words);
  return sum_of<T, kRanks>(links, own, words);
}

// Writes to the same position in every other rank's memory, except for the seat: word + seat *
// stride.
template <int kRanks>
__device__ __forceinline__ void send_to_all(const Links& links, const Call& call, std::size_t word,
                                            std::size_t stride, const uint4& value) {
  if (call.failed) return;
#pragma unroll
  for (int n = 1; n < kRanks; ++n) {
    if (n >= ranks_of<kRanks>(links)) break;
    const int peer = nth_peer(links.rank, n, ranks_of<kRanks>(links));
    put(box(links, call, peer) + word + seat(peer, links.rank) * stride, value);
  }
}

}  // namespace nvllm::ipc::peer
