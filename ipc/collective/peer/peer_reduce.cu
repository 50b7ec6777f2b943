// all_reduce, one-shot and two-shot, and reduce_scatter over peer memory.
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/peer_launch.cuh"

namespace nvllm::ipc::peer {
namespace {

template <typename T>
struct OneShot {
  T* data;
  std::int64_t elements;
  std::int64_t words;  // at least one, if necessary of padding
  bool aligned;
};

template <typename T, int kRanks>
__global__ void __launch_bounds__(kThreads)
    one_shot_kernel(const __grid_constant__ Links links, const __grid_constant__ OneShot<T> p) {
  constexpr int kElements = Vector<T>::kElements;
  const Call call = begin(links, p);
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;

  for (std::int64_t w = first; w < p.words; w += step) {
    const Vector<T> own = load_part(p.data, w * kElements, p.elements, p.aligned);
    send_to_all<kRanks>(links, call, w, p.words, to_word(own));
  }
  advance(links, call);
  uint4* const inbox = box(links, call, links.rank);
  for (std::int64_t w = first; w < p.words; w += step) {
    const Vector<T> own = load_part(p.data, w * kElements, p.elements, p.aligned);
    const Vector<T> sum = receive_sum<T, kRanks>(links, call, inbox + w, p.words, own);
    store_part(p.data, w * kElements, p.elements, p.aligned, sum);
  }
}

// A tensor as one slice per rank. Slice s starts at element s * stride and has `elements` elements,
// except those at or beyond `end`.
template <typename T>
struct Sliced {
  const T* in;
  std::int64_t stride;
  std::int64_t elements;
  std::int64_t end;
  std::int64_t words;  // of a slice; all slices are sent with this size, padded with zeros
  bool aligned;        // every slice begins at a multiple of 16 bytes

  __device__ __forceinline__ std::int64_t begin(int slice, std::int64_t word) const {
    return slice * stride + word * Vector<T>::kElements;
  }
  __device__ __forceinline__ std::int64_t end_of(int slice) const {
    const std::int64_t slice_end = slice * stride + elements;
    return slice_end < end ? slice_end : end;
  }
  __device__ __forceinline__ Vector<T> load(int slice, std::int64_t word) const {
    return load_part(in, begin(slice, word), end_of(slice), aligned);
  }
};

// Sends each rank its slice. All loads of a word precede the first store.
template <typename T, int kRanks>
__device__ __forceinline__ void send_slices(const Links& links, const Call& call,
                                            const Sliced<T>& p, std::int64_t w) {
  if (call.failed) return;
  Vector<T> parts[kRanks];
#pragma unroll
  for (int n = 1; n < kRanks; ++n) {
    if (n < ranks_of<kRanks>(links)) {
      parts[n] = p.load(nth_peer(links.rank, n, ranks_of<kRanks>(links)), w);
    }
  }
#pragma unroll
  for (int n = 1; n < kRanks; ++n) {
    if (n >= ranks_of<kRanks>(links)) break;
    const int peer = nth_peer(links.rank, n, ranks_of<kRanks>(links));
    put(box(links, call, peer) + seat(peer, links.rank) * p.words + w, to_word(parts[n]));
  }
}

template <typename T, int kRanks>
__global__ void __launch_bounds__(kThreads)
    two_shot_kernel(const __grid_constant__ Links links, const __grid_constant__ Sliced<T> p,
                    T* const data) {
  const Call call = begin(links, p);
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t results =
      (ranks_of<kRanks>(links) - 1) * p.words;  // position of the results in an area

  // A thread sends word w of every slice before it overwrites any of them with results.
  for (std::int64_t w = first; w < p.words; w += step) {
    send_slices<T, kRanks>(links, call, p, w);
  }
  advance(links, call);
  uint4* const inbox = box(links, call, links.rank);
  for (std::int64_t w = first; w < p.words; w += step) {
    const Vector<T> own = p.load(links.rank, w);
    const Vector<T> sum = receive_sum<T, kRanks>(links, call, inbox + w, p.words, own);
    send_to_all<kRanks>(links, call, results + w, p.words, to_word(sum));
    store_part(data, p.begin(links.rank, w), p.end_of(links.rank), p.aligned, sum);
  }
  for (std::int64_t w = first; w < p.words; w += step) {
    uint4 words[kRanks - 1];
    receive<Floats, kRanks>(links, call, inbox + results + w, p.words, kAllSeats, words);
#pragma unroll
    for (int seat = 0; seat < kRanks - 1; ++seat) {
      if (seat >= ranks_of<kRanks>(links) - 1) break;
      const int sender = sender_at(links.rank, seat);
      store_part(data, p.begin(sender, w), p.end_of(sender), p.aligned, to_vector<T>(words[seat]));
    }
  }
}

template <typename T, int kRanks>
__global__ void __launch_bounds__(kThreads)
    reduce_scatter_kernel(const __grid_constant__ Links links, const __grid_constant__ Sliced<T> p,
                          T* const out, const bool out_aligned) {
  const Call call = begin(links, p);
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;

  for (std::int64_t w = first; w < p.words; w += step) {
    send_slices<T, kRanks>(links, call, p, w);
  }
  advance(links, call);
  uint4* const inbox = box(links, call, links.rank);
  for (std::int64_t w = first; w < p.words; w += step) {
    const Vector<T> own = p.load(links.rank, w);
    const Vector<T> sum = receive_sum<T, kRanks>(links, call, inbox + w, p.words, own);
    store_part(out, w * Vector<T>::kElements, p.elements, out_aligned, sum);
  }
}

__global__ void clear_kernel(uint4* box) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t w = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; w < kAreas * kAreaWords;
       w += step) {
    wipe(box + w);
  }
}

template <typename T>
std::int64_t words_for(std::int64_t elements) {
  constexpr std::int64_t kElements = Vector<T>::kElements;
  return std::max<std::int64_t>(1, (elements + kElements - 1) / kElements);
}

}  // namespace

void launch_clear(void* box, cudaStream_t stream) {
  clear_kernel<<<64, kThreads, 0, stream>>>(static_cast<uint4*>(box));
  cuda::check(cudaGetLastError(), "launching clear");
}

bool runs_hopper_code() {
  cudaFuncAttributes attributes{};
  cuda::check(cudaFuncGetAttributes(&attributes, clear_kernel), "asking for a kernel's version");
  // Code for 8.0 that the driver compiles for a later GPU has that GPU's binaryVersion.
  return attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
}

std::size_t one_shot_limit(int ranks) {
  return kAreaBytes / static_cast<std::size_t>(std::max(1, ranks - 1)) / sizeof(uint4) *
         sizeof(uint4);
}

std::size_t two_shot_limit(int ranks) {
  // Two regions of ranks - 1 slices each.
  return one_shot_limit(ranks) / 2 / sizeof(uint4) * sizeof(uint4) *
         static_cast<std::size_t>(ranks);
}

std::size_t reduce_scatter_limit(int ranks) {
  return one_shot_limit(ranks);
}

void launch_one_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream) {
  dispatch(type, links.ranks, [&]<typename T, int kRanks>() {
    const OneShot<T> p{static_cast<T*>(data), elements, words_for<T>(elements), is_aligned(data)};
    const int threads = threads_for(p.words);
    launch("launching the one-shot all_reduce", one_shot_kernel<T, kRanks>, links,
           grid_for(links, p.words, threads), threads, 1, stream, p);
  });
}

void launch_two_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream) {
  dispatch(type, links.ranks, [&]<typename T, int kRanks>() {
    const std::int64_t words = (words_for<T>(elements) + links.ranks - 1) / links.ranks;
    const std::int64_t slice = words * Vector<T>::kElements;
    const Sliced<T> p{static_cast<const T*>(data), slice, slice, elements, words, is_aligned(data)};
    const int threads = threads_for(words);
    launch("launching the two-shot all_reduce", two_shot_kernel<T, kRanks>, links,
           grid_for(links, words, threads), threads, 1, stream, p, static_cast<T*>(data));
  });
}

void launch_reduce_scatter(const Links& links, DType type, void* out, const void* in,
                           std::int64_t elements, std::int64_t stride, cudaStream_t stream) {
  dispatch(type, links.ranks, [&]<typename T, int kRanks>() {
    const std::int64_t words = words_for<T>(elements);
    const bool aligned = is_aligned(in) && stride % Vector<T>::kElements == 0;
    const Sliced<T> p{static_cast<const T*>(in), stride, elements,
                      stride * links.ranks,      words,  aligned};
    const int threads = threads_for(words);
    launch("launching reduce_scatter", reduce_scatter_kernel<T, kRanks>, links,
           grid_for(links, words, threads), threads, 1, stream, p, static_cast<T*>(out),
           is_aligned(out));
  });
}

}  // namespace nvllm::ipc::peer
