#include <cstring>

#include "ipc/collective/peer_experiment.h"
#include "ipc/collective/peer_kernels.h"
#include "ipc/collective/peer_launch.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace nvllm::ipc::peer {
namespace {

// How words are sent and looked for: a sum of
constexpr unsigned kPlain = 0;
constexpr unsigned kPredicated = 1;    // look again only for what is missing
constexpr unsigned kSerial = 2;        // one word after the other, as before
constexpr unsigned kWeak = 4;          // st without order or scope
constexpr unsigned kGpuScope = 8;      // ld.relaxed.gpu
constexpr unsigned kEarlyTicket = 16;  // the ticket's answer is waited for at once
constexpr unsigned kExact = 32;        // division and square root, rounded

constexpr unsigned kBulk = 64;  // sent by the copy engine of the multiprocessor

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ Call start(const Links& links, int pdl) {
  if (pdl == 2) let_successor_start();
  wait_for_predecessor();
  if (pdl == 1) let_successor_start();
  return begin(links);
}

template <unsigned kOptions>
__device__ __forceinline__ void look(uint4& value, const uint4* word, bool wanted) {
  if constexpr ((kOptions & kGpuScope) != 0) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
        "@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
        : "l"(word), "r"(unsigned{wanted})
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
        "@p ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
        : "l"(word), "r"(unsigned{wanted})
        : "memory");
  }
}

template <unsigned kOptions>
__device__ __forceinline__ void push(uint4* word, const uint4& value) {
  if constexpr ((kOptions & kWeak) != 0) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(word), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
  } else {
    put(word, value);
  }
}

template <unsigned kOptions, int kMaxRanks>
__device__ __forceinline__ void push_to_all(const Links& links, const Call& call, std::size_t word,
                                            std::size_t stride, const uint4& value) {
  if (call.failed) return;
#pragma unroll
  for (int n = 1; n < kMaxRanks; ++n) {
    if (n >= links.ranks) break;
    const int peer = nth_peer(links.rank, n, links.ranks);
    push<kOptions>(box(links, call, peer) + word + seat(peer, links.rank, links.ranks) * stride,
                   value);
  }
}

// The words of a block, a thread each, to all peers. All threads call it.
template <int kMaxRanks>
__device__ __forceinline__ void push_block(const Links& links, const Call& call, uint4* staged,
                                           std::size_t first, int count, std::size_t stride,
                                           const uint4& value) {
#if __CUDA_ARCH__ >= 900
  const int thread = threadIdx.x;
  staged[thread] = value;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (thread < links.ranks - 1 && count > 0 && !call.failed) {
    const int peer = nth_peer(links.rank, thread + 1, links.ranks);
    uint4* const to = box(links, call, peer) + first + seat(peer, links.rank, links.ranks) * stride;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(static_cast<unsigned>(__cvta_generic_to_shared(staged))), "r"(count * 16)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
#endif
}
__device__ __forceinline__ void await_pushed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Words [vector][seat], all at once; words of vectors that are not `wanted` stay as they are.
template <unsigned kOptions, int V, int kMaxRanks>
__device__ __forceinline__ void receive_all(const Links& links, const Call& call,
                                            uint4* (&first)[V], const bool (&wanted)[V],
                                            std::size_t stride, uint4 (&words)[V][kMaxRanks - 1]) {
  constexpr unsigned kTurnsPerLook = 1024;
  unsigned long long since = 0;
  unsigned turn = 0;
  uint4 empty = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int s = 0; s < kMaxRanks - 1; ++s) words[v][s] = empty;
  }
  bool complete = false;
  while (!complete && !call.failed) {
    bool missing[V][kMaxRanks - 1];
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int s = 0; s < kMaxRanks - 1; ++s) {
        missing[v][s] = wanted[v] && s < links.ranks - 1 &&
                        ((kOptions & kPredicated) == 0 || !Floats::complete(words[v][s]));
        look<kOptions>(words[v][s], first[v] + s * stride, missing[v][s]);
      }
    }
    complete = true;
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int s = 0; s < kMaxRanks - 1; ++s) {
        complete = complete && (!missing[v][s] || Floats::complete(words[v][s]));
      }
    }
    if (!complete && ++turn % kTurnsPerLook == 0 && give_up(links, call.number, 0, &since)) return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int s = 0; s < kMaxRanks - 1; ++s) {
      if (wanted[v] && s < links.ranks - 1) wipe(first[v] + s * stride);
    }
  }
}

// The sum in rank order; seats count from the own rank on.
template <typename T, int kMaxRanks>
__device__ __forceinline__ Vector<T> sum_of(const Links& links, const Vector<T>& own,
                                            const uint4 (&words)[kMaxRanks - 1]) {
  kernels::Floats<T> sums = {};
#pragma unroll
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (rank >= links.ranks) break;
    Vector<T> part = own;
    if (rank != links.rank) {
      const int place = seat(links.rank, rank, links.ranks);
      uint4 word = words[0];
#pragma unroll
      for (int s = 1; s < kMaxRanks - 1; ++s) {
        if (place == s) word = words[s];
      }
      part = to_vector<T>(word);
    }
    const kernels::Floats<T> addends = kernels::widen(part);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) {
      sums.element[i] = __fadd_rn(sums.element[i], addends.element[i]);
    }
  }
  return to_vector<T>(to_word(kernels::narrow(sums)));
}

template <unsigned kOptions>
__device__ __forceinline__ unsigned take_ticket(const Links& links, const Call& call) {
  __syncthreads_or(call.failed);
  if (threadIdx.x != 0) return 0;
  const unsigned ticket = atomicAdd(&links.control->ticket, 1u);
  if constexpr ((kOptions & kEarlyTicket) != 0) {
    if (ticket == gridDim.x - 1) {
      links.control->ticket = 0;
      links.control->call = call.number + 1;
    }
  }
  return ticket;
}
template <unsigned kOptions>
__device__ __forceinline__ void settle(const Links& links, const Call& call, unsigned ticket) {
  if constexpr ((kOptions & kEarlyTicket) == 0) {
    if (threadIdx.x == 0 && ticket == gridDim.x - 1) {
      links.control->ticket = 0;
      links.control->call = call.number + 1;
    }
  }
}

struct Fused {
  Bf16* out;
  const Bf16* x;
  Bf16* residual;
  const Bf16* weight;
  int vectors;           // of a row
  int vectors_of_block;  // a multiple of 32
  int cluster;
  int pdl;
  float inverse_columns;
  float columns;
  float epsilon;
};

constexpr int kMaxVectors = 2048;

// The chunk sums of a row, gathered in each block of a cluster.
struct Gathered {
  alignas(16) float sums[kMaxVectors / 32];
  alignas(8) unsigned long long arrived;  // an mbarrier
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void open_exchange(Gathered& shared, int chunks) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    for (int slot = chunks; slot < kernels::rms_norm_slots(chunks); ++slot) shared.sums[slot] = 0;
    const unsigned barrier = shared_address(&shared.arrived);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(chunks * 4)
                 : "memory");
  }
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_exchange() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ __forceinline__ void give_chunk(Gathered& shared, int chunk, float sum, int cluster) {
#if __CUDA_ARCH__ >= 900
  const int lane = threadIdx.x % 32;
  if (lane >= cluster) return;
  unsigned place, barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(place)
      : "r"(shared_address(&shared.sums[chunk])), "r"(lane));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(barrier)
      : "r"(shared_address(&shared.arrived)), "r"(lane));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
      "r"(__float_as_uint(sum)), "r"(barrier)
      : "memory");
#endif
}
__device__ __forceinline__ void await_chunks(Gathered& shared) {
#if __CUDA_ARCH__ >= 900
  unsigned done = 0;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(&shared.arrived))
        : "memory");
  } while (done == 0);
#endif
}

template <int kMaxRanks, int V, bool kCluster, unsigned kOptions>
__global__ void __launch_bounds__(512)
    fused_kernel(const __grid_constant__ Links links, const Fused p) {
  using T = Bf16;
  constexpr int kElements = Vector<T>::kElements;
  __shared__ Gathered shared;
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  const int row = kCluster ? blockIdx.x / p.cluster : blockIdx.x;
  const int part = kCluster ? blockIdx.x % p.cluster : 0;
  const int rows = kCluster ? gridDim.x / p.cluster : gridDim.x;
  const int begin_vector = part * p.vectors_of_block;
  const int end_vector = kCluster ? min(p.vectors, begin_vector + p.vectors_of_block) : p.vectors;
  const std::int64_t start_vector = std::int64_t{row} * p.vectors;
  const std::size_t words = std::size_t(rows) * p.vectors;
  const int chunks = (p.vectors + 31) / 32;
  if constexpr (kCluster) open_exchange(shared, chunks);

  int vector[V];
  bool mine[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    vector[v] = begin_vector + thread + v * threads;
    mine[v] = vector[v] < end_vector && (V == 1 || thread + v * threads < p.vectors_of_block);
  }

  const Call call = start(links, p.pdl);
  Vector<T> x[V] = {}, weight[V] = {}, residual[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (mine[v]) x[v] = kernels::load_vector(p.x + (start_vector + vector[v]) * kElements);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (!mine[v]) continue;
    weight[v] = kernels::load_vector(p.weight + vector[v] * kElements);
    if (p.residual != nullptr) {
      residual[v] = kernels::load_vector(p.residual + (start_vector + vector[v]) * kElements);
    }
  }
  if constexpr ((kOptions & kBulk) != 0) {
    __shared__ alignas(128) uint4 staged[512];
    push_block<kMaxRanks>(links, call, staged, start_vector + begin_vector,
                          end_vector - begin_vector, words, to_word(x[0]));
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (mine[v] && (kOptions & kBulk) == 0) {
      push_to_all<kOptions, kMaxRanks>(links, call, start_vector + vector[v], words, to_word(x[v]));
    }
  }
  const unsigned ticket = take_ticket<kOptions>(links, call);
  if constexpr (kCluster) await_exchange();

  uint4* const inbox = box(links, call, links.rank) + start_vector;
  if constexpr ((kOptions & kSerial) != 0) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (mine[v]) x[v] = receive_sum<T, kMaxRanks>(links, call, inbox + vector[v], words, x[v]);
    }
  } else {
    uint4* first[V];
    uint4 all[V][kMaxRanks - 1];
#pragma unroll
    for (int v = 0; v < V; ++v) first[v] = inbox + vector[v];
    receive_all<kOptions, V, kMaxRanks>(links, call, first, mine, words, all);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (mine[v]) x[v] = sum_of<T, kMaxRanks>(links, x[v], all[v]);
    }
  }
  const int warp = thread / 32;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (mine[v] && p.residual != nullptr) {
      x[v] = kernels::add(residual[v], x[v]);
      kernels::store_vector(p.residual + (start_vector + vector[v]) * kElements, x[v]);
    }
    const float sum = kernels::rms_norm_chunk(x[v]);
    const int chunk = (begin_vector + v * threads) / 32 + warp;
    const bool exists = warp * 32 + v * threads < p.vectors_of_block && chunk < chunks;
    if constexpr (kCluster) {
      if (exists) give_chunk(shared, chunk, sum, p.cluster);
    } else {
      if (thread % 32 == 0 && chunk < kMaxVectors / 32) shared.sums[chunk] = exists ? sum : 0;
    }
  }
  if constexpr (kCluster) {
    await_chunks(shared);
  } else {
    if (thread < kernels::rms_norm_slots(chunks) - chunks) shared.sums[chunks + thread] = 0;
    __syncthreads();
  }
  const float squares = kernels::rms_norm_add_chunks(shared.sums, kernels::rms_norm_slots(chunks));
  float scale;
  if constexpr ((kOptions & kExact) != 0) {
    scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, p.columns), p.epsilon)));
  } else {
    scale = kernels::rms_norm_scale(squares, p.inverse_columns, p.epsilon);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (mine[v]) {
      kernels::store_vector(p.out + (start_vector + vector[v]) * kElements,
                            kernels::rms_norm_apply(x[v], scale, weight[v]));
    }
  }
  settle<kOptions>(links, call, ticket);
  if constexpr ((kOptions & kBulk) != 0) await_pushed();
}

struct Plain {
  Bf16* data;
  std::int64_t words;
  int pdl;
};

template <int kMaxRanks, unsigned kOptions>
__global__ void __launch_bounds__(512)
    plain_kernel(const __grid_constant__ Links links, const Plain p) {
  using T = Bf16;
  constexpr int kElements = Vector<T>::kElements;
  const Call call = start(links, p.pdl);
  const std::int64_t w = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool mine = w < p.words;
  Vector<T> own = {};
  if (mine) {
    own = kernels::load_vector(p.data + w * kElements);
    if constexpr ((kOptions & kBulk) == 0) {
      push_to_all<kOptions, kMaxRanks>(links, call, w, p.words, to_word(own));
    }
  }
  if constexpr ((kOptions & kBulk) != 0) {
    __shared__ alignas(128) uint4 staged[512];
    const std::int64_t begin_word = w - threadIdx.x;
    const std::int64_t left = p.words - begin_word;
    push_block<kMaxRanks>(links, call, staged, begin_word,
                          left < blockDim.x ? static_cast<int>(left) : blockDim.x, p.words,
                          to_word(own));
  }
  const unsigned ticket = take_ticket<kOptions>(links, call);
  uint4* const inbox = box(links, call, links.rank);
  uint4* first[1] = {inbox + w};
  const bool wanted[1] = {mine};
  uint4 all[1][kMaxRanks - 1];
  receive_all<kOptions, 1, kMaxRanks>(links, call, first, wanted, p.words, all);
  if (mine) {
    kernels::store_vector(p.data + w * kElements, sum_of<T, kMaxRanks>(links, own, all[0]));
  }
  settle<kOptions>(links, call, ticket);
  if constexpr ((kOptions & kBulk) != 0) await_pushed();
}

template <typename Kernel, typename P>
void launch_kernel(Kernel kernel, int blocks, int threads, const Variant& variant, bool cluster,
                   cudaStream_t stream, const Links& links, const P& p) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = attributes;
  if (variant.pdl != 0) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(variant.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  cuda::check(cudaLaunchKernelEx(&config, kernel, links, p), "launching a variant");
}

template <int kMaxRanks>
bool launch_fused(const Links& links, const kernels::RmsNorm& args, const Variant& variant,
                  cudaStream_t stream) {
  Fused p;
  p.out = args.out.as<Bf16>();
  p.x = args.x.as<Bf16>();
  p.residual = args.residual.as<Bf16>();
  p.weight = args.weight.as<Bf16>();
  p.columns = static_cast<float>(args.x.shape[1]);
  p.inverse_columns = 1.0f / p.columns;
  p.vectors = static_cast<int>(args.x.shape[1] / 8);
  p.epsilon = args.epsilon;
  p.cluster = variant.cluster;
  p.pdl = variant.pdl;
  const int chunks = (p.vectors + 31) / 32;
  if (variant.cluster > chunks) return false;
  const int chunks_of_block = (chunks + variant.cluster - 1) / variant.cluster;
  p.vectors_of_block = chunks_of_block * 32;
  const int blocks = static_cast<int>(args.x.shape[0]) * variant.cluster;

  const auto is = [&](const char* name) { return std::strcmp(variant.kernel, name) == 0; };
  const auto run = [&](auto kernel, int vectors, bool cluster) {
    launch_kernel(kernel, blocks, (chunks_of_block + vectors - 1) / vectors * 32, variant, cluster,
                  stream, links, p);
    return true;
  };
  if (is("v2")) return run(fused_kernel<kMaxRanks, 2, false, kPlain>, 2, false);
  if (is("v2serial")) return run(fused_kernel<kMaxRanks, 2, false, kSerial>, 2, false);
  if (is("v1")) return run(fused_kernel<kMaxRanks, 1, false, kPlain>, 1, false);
  if (is("v2c")) return run(fused_kernel<kMaxRanks, 2, true, kPlain>, 2, true);
  if (is("v1c")) return run(fused_kernel<kMaxRanks, 1, true, kPlain>, 1, true);
  if (is("v1c-predicated")) return run(fused_kernel<kMaxRanks, 1, true, kPredicated>, 1, true);
  if (is("v1c-serial")) return run(fused_kernel<kMaxRanks, 1, true, kSerial>, 1, true);
  if (is("v1c-weak")) return run(fused_kernel<kMaxRanks, 1, true, kWeak>, 1, true);
  if (is("v1c-gpu")) return run(fused_kernel<kMaxRanks, 1, true, kGpuScope>, 1, true);
  if (is("v1c-early")) return run(fused_kernel<kMaxRanks, 1, true, kEarlyTicket>, 1, true);
  if (is("v1c-bulk")) return run(fused_kernel<kMaxRanks, 1, true, kBulk>, 1, true);
  if (is("v1c-exact")) return run(fused_kernel<kMaxRanks, 1, true, kExact>, 1, true);
  return false;
}

template <int kMaxRanks>
bool launch_plain(const Links& links, void* data, std::int64_t elements, const Variant& variant,
                  cudaStream_t stream) {
  const Plain p{static_cast<Bf16*>(data), elements / 8, variant.pdl};
  const int threads = variant.threads;
  const int blocks = static_cast<int>((p.words + threads - 1) / threads);
  const auto is = [&](const char* name) { return std::strcmp(variant.kernel, name) == 0; };
  const auto run = [&](auto kernel) {
    launch_kernel(kernel, blocks, threads, variant, false, stream, links, p);
    return true;
  };
  if (is("plain")) return run(plain_kernel<kMaxRanks, kPlain>);
  if (is("predicated")) return run(plain_kernel<kMaxRanks, kPredicated>);
  if (is("weak")) return run(plain_kernel<kMaxRanks, kWeak>);
  if (is("gpu")) return run(plain_kernel<kMaxRanks, kGpuScope>);
  if (is("bulk")) return run(plain_kernel<kMaxRanks, kBulk>);
  if (is("early")) return run(plain_kernel<kMaxRanks, kEarlyTicket>);
  return false;
}

}  // namespace

bool launch_fused_variant(const Links& links, const kernels::RmsNorm& args, const Variant& variant,
                          cudaStream_t stream) {
  return links.ranks <= 2 ? launch_fused<2>(links, args, variant, stream)
                          : launch_fused<4>(links, args, variant, stream);
}

bool launch_plain_variant(const Links& links, void* data, std::int64_t elements,
                          const Variant& variant, cudaStream_t stream) {
  return links.ranks <= 2 ? launch_plain<2>(links, data, elements, variant, stream)
                          : launch_plain<4>(links, data, elements, variant, stream);
}

}  // namespace nvllm::ipc::peer
