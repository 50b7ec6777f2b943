// all_gather, gather, broadcast and barrier over peer memory: the data is copied unchanged.
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/peer_launch.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr std::int64_t kDataBytes = 8;  // of a word

struct Exchange {
  unsigned char* out;
  const unsigned char* in;
  std::int64_t bytes;
  std::int64_t stride;  // between the ranks' parts of `out`
  std::int64_t words;
  int root;
  bool in_aligned, out_aligned;  // to kDataBytes, every part
};

// Whether `from` has data for `to`; if not, it sends a token, a word without data.
__device__ __forceinline__ bool carries(Operation operation, int from, int to, int root) {
  switch (operation) {
    case Operation::all_gather: return true;
    case Operation::gather: return to == root;
    case Operation::broadcast: return from == root;
    default: return false;
  }
}

__device__ __forceinline__ uint2 load_bytes(const Exchange& p, std::int64_t word) {
  const std::int64_t begin = word * kDataBytes;
  if (p.in_aligned && begin + kDataBytes <= p.bytes) {
    return *reinterpret_cast<const uint2*>(p.in + begin);
  }
  unsigned parts[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kDataBytes; ++i) {
    if (begin + i < p.bytes) parts[i / 4] |= unsigned{p.in[begin + i]} << (i % 4 * 8);
  }
  return make_uint2(parts[0], parts[1]);
}

__device__ __forceinline__ void store_bytes(const Exchange& p, int part, std::int64_t word,
                                            const uint2& data) {
  const std::int64_t begin = word * kDataBytes;
  unsigned char* const out = p.out + part * p.stride + begin;
  if (p.out_aligned && begin + kDataBytes <= p.bytes) {
    *reinterpret_cast<uint2*>(out) = data;
    return;
  }
  const unsigned parts[2] = {data.x, data.y};
#pragma unroll
  for (int i = 0; i < kDataBytes; ++i) {
    if (begin + i < p.bytes) out[i] = static_cast<unsigned char>(parts[i / 4] >> (i % 4 * 8));
  }
}

template <int kRanks>
__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ Links links, const __grid_constant__ Exchange p) {
  const Call call = begin(links, p);
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const Operation operation = links.operation;
  const bool gathers = operation == Operation::all_gather || operation == Operation::gather;

  for (std::int64_t w = first; w < p.words && !call.failed; w += step) {
    const uint4 word = Bytes::encode(load_bytes(p, w));
#pragma unroll
    for (int n = 1; n < kRanks; ++n) {
      if (n >= ranks_of<kRanks>(links)) break;
      const int peer = nth_peer(links.rank, n, ranks_of<kRanks>(links));
      if (w != 0 && !carries(operation, links.rank, peer, p.root)) continue;
      put(box(links, call, peer) + seat(peer, links.rank) * p.words + w, word);
    }
    // Copies this rank's own part, unless it is in place.
    if (gathers && carries(operation, links.rank, links.rank, p.root) &&
        p.out + links.rank * p.stride != p.in) {
      store_bytes(p, links.rank, w, make_uint2(word.x, word.z));
    }
  }
  advance(links, call);
  uint4* const inbox = box(links, call, links.rank);
  for (std::int64_t w = first; w < p.words; w += step) {
    unsigned wanted = 0;
    unsigned data = 0;
#pragma unroll
    for (int seat = 0; seat < kRanks - 1; ++seat) {
      const bool carried = carries(operation, sender_at(links.rank, seat), links.rank, p.root);
      data |= unsigned{carried} << seat;
      wanted |= unsigned{carried || w == 0} << seat;
    }
    uint4 words[kRanks - 1];
    receive<Bytes, kRanks>(links, call, inbox + w, p.words, wanted, words);
#pragma unroll
    for (int seat = 0; seat < kRanks - 1; ++seat) {
      if (seat >= ranks_of<kRanks>(links) - 1) break;
      if ((data >> seat & 1) == 0) continue;
      store_bytes(p, gathers ? sender_at(links.rank, seat) : 0, w,
                  make_uint2(words[seat].x, words[seat].z));
    }
  }
}

}  // namespace

std::size_t exchange_limit(int ranks) {
  // Half of each word is data.
  return kAreaBytes / static_cast<std::size_t>(std::max(1, ranks - 1)) / sizeof(uint4) * kDataBytes;
}

void launch_exchange(const Links& links, void* out, const void* in, std::size_t bytes,
                     std::size_t stride, int root, cudaStream_t stream) {
  Exchange p;
  p.out = static_cast<unsigned char*>(out);
  p.in = static_cast<const unsigned char*>(in);
  p.bytes = static_cast<std::int64_t>(bytes);
  p.stride = static_cast<std::int64_t>(stride);
  p.words = std::max<std::int64_t>(1, (p.bytes + kDataBytes - 1) / kDataBytes);
  p.root = root;
  p.in_aligned = reinterpret_cast<std::uintptr_t>(in) % kDataBytes == 0;
  p.out_aligned =
      reinterpret_cast<std::uintptr_t>(out) % kDataBytes == 0 && stride % kDataBytes == 0;
  const int threads = threads_for(p.words);
  const dim3 grid = grid_for(links, p.words, threads);
  dispatch_ranks(links.ranks, [&]<int kRanks>() {
    launch("launching an exchange", exchange_kernel<kRanks>, links, grid, threads, 1, stream, p);
  });
}

}  // namespace nvllm::ipc::peer
