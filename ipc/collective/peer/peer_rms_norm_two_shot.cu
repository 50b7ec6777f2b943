// all_reduce, residual sum and RMSNorm in one kernel, two-shot: for more rows than one-shot
// (peer_rms_norm.cu) is fast for. The bits are the same.
//
// Rows are owned by the ranks round robin. A row's owner receives it from all others, sums it, adds
// the residual and sends the sum to all: it is the new residual, the same on all ranks, and each
// rank normalizes it. So the residual is read on one rank only, and normalized rows need not be
// sent.
//
// A row is processed by the blocks with the same index on all ranks. A block with several rows
// sends rows ahead of those that it sums, and finishes rows later, so that the links are always
// busy.
#include "base/math.h"
#include "ipc/collective/peer/peer_kernels.h"
#include "ipc/collective/peer/peer_launch.cuh"

namespace nvllm::ipc::peer {
namespace {

constexpr int kMaxThreads =
    1024;  // per multiprocessor, over all of its blocks: leaves 64 registers per thread
constexpr int kMinThreads = 128;  // smaller blocks count as this many
constexpr int kAhead = 2;         // a block sends this many of its rows ahead
constexpr int kBehind = 1;        // a block takes the others' sums this many rows later

template <typename T>
struct Params : NormParams<T> {
  int rows;
  int groups;  // of as many rows as there are ranks: the number of rows that each rank owns
};

// A block's work on its rows: thread t has the vectors t, t + blockDim.x, ... of each.
template <typename T, int kRanks, int kVectors>
struct Block {
  using Row = Vector<T>[kVectors];

  const Links& links;
  const Params<T>& p;
  const Call& call;
  float (&chunk_sums)[2][kMaxChunks];  // of a row; the next row uses the other buffer
  Row weight = {};
  int rows_summed = 0;

  __device__ __forceinline__ int ranks() const { return ranks_of<kRanks>(links); }
  __device__ __forceinline__ int owner(int row) const { return row % ranks(); }

  // Layout of an area: the parts from each sender, then the sums from each, in the order of seats.
  __device__ __forceinline__ std::size_t stride() const {
    return std::size_t(p.groups) * p.vectors;
  }
  __device__ __forceinline__ std::size_t part_at(int row) const {
    return std::size_t(row / ranks()) * p.vectors;
  }
  __device__ __forceinline__ std::size_t sum_at(int row) const {
    return (ranks() - 1) * stride() + part_at(row);
  }

  // Calls function(v, vector) for each vector of this thread.
  template <typename Function>
  __device__ __forceinline__ void each(const Function& function) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = threadIdx.x + v * blockDim.x;
      if (vector < p.vectors) function(v, vector);
    }
  }
  template <typename Element>
  __device__ __forceinline__ Element* at(Element* tensor, int row, int vector) const {
    return tensor + (std::int64_t{row} * p.columns + vector * Vector<T>::kElements);
  }

  __device__ __forceinline__ void load_weight() {
    each([&](int v, int vector) { weight[v] = kernels::load_vector(at(p.weight, 0, vector)); });
  }

  // Sends a row to its owner.
  __device__ __forceinline__ void send(int row) const {
    const int to = owner(row);
    if (row >= p.rows || to == links.rank || call.failed) return;
    uint4* const there = box(links, call, to) + seat(to, links.rank) * stride() + part_at(row);
    Row x;
    each([&](int v, int vector) { x[v] = kernels::load_vector(at(p.x, row, vector)); });
    each([&](int v, int vector) { put(there + vector, to_word(x[v])); });
  }

  // Sums a row that this rank owns, and sends the sum.
  __device__ __forceinline__ void reduce(int row) {
    if (row >= p.rows || owner(row) != links.rank) return;
    uint4* const inbox = box(links, call, links.rank) + part_at(row);
    Row sum = {}, residual = {};
    each([&](int v, int vector) {
      sum[v] = kernels::load_vector(at(p.x, row, vector));
      if (p.residual != nullptr) residual[v] = kernels::load_vector(at(p.residual, row, vector));
    });
    each([&](int v, int vector) {
      sum[v] = receive_sum<T, kRanks>(links, call, inbox + vector, stride(), sum[v]);
      if (p.residual != nullptr) sum[v] = kernels::add(residual[v], sum[v]);
      // It has no -0 either, since received data has none.
      send_to_all<kRanks>(links, call, sum_at(row) + vector, stride(),
                          *reinterpret_cast<const uint4*>(&sum[v]));
    });
    keep(row, sum);
  }

  // Receives the sum of a row of another owner.
  __device__ __forceinline__ void finish(int row) {
    const int from = owner(row);
    if (row < 0 || row >= p.rows || from == links.rank) return;
    uint4* const inbox =
        box(links, call, links.rank) + seat(links.rank, from) * stride() + sum_at(row);
    uint4 words[kVectors] = {};
    receive_words<Floats>(
        links, call, inbox + threadIdx.x, blockDim.x, words,
        [&](int v) { return static_cast<int>(threadIdx.x + v * blockDim.x) < p.vectors; },
        [&](int) { return from; });
    Row sum;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sum[v] = to_vector<T>(words[v]);
    keep(row, sum);
  }

  // Stores a sum as the residual, and its norm. Elements beyond the row's end are zero.
  __device__ __forceinline__ void keep(int row, const Row& sum) {
    const int warps = blockDim.x / 32;
    float* const sums = chunk_sums[rows_summed++ % 2];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float chunk = kernels::rms_norm_chunk(sum[v]);
      if (threadIdx.x % 32 == 0) sums[v * warps + threadIdx.x / 32] = chunk;
    }
    if (p.residual != nullptr) {
      each([&](int v, int vector) { kernels::store_vector(at(p.residual, row, vector), sum[v]); });
    }
    __syncthreads();
    const int slots = kernels::rms_norm_slots(kVectors * warps);
    const float scale = kernels::rms_norm_scale(kernels::rms_norm_add_chunks(sums, slots),
                                                p.inverse_columns, p.epsilon);
    each([&](int v, int vector) {
      kernels::store_vector(at(p.out, row, vector),
                            kernels::rms_norm_apply(sum[v], scale, weight[v]));
    });
  }
};

template <typename T, int kRanks, int kVectors>
__global__ void __launch_bounds__(kMaxThreads, 1)
    two_shot_rms_norm_kernel(const __grid_constant__ Links links,
                             const __grid_constant__ Params<T> p) {
  alignas(16) __shared__ float chunk_sums[2][kMaxChunks];
  const int chunks = kVectors * static_cast<int>(blockDim.x) / 32;
  // Visible to all threads: advance() contains a barrier.
  if (threadIdx.x < kernels::rms_norm_slots(chunks) - chunks) {
    chunk_sums[0][chunks + threadIdx.x] = chunk_sums[1][chunks + threadIdx.x] = 0;
  }
  const Call call = begin(links, p);
  Block<T, kRanks, kVectors> block{links, p, call, chunk_sums};
  const int first = blockIdx.x, step = gridDim.x;
  for (int n = 0; n < kAhead; ++n) block.send(first + n * step);
  block.load_weight();
  advance(links, call);
  for (int row = first; row - kBehind * step < p.rows; row += step) {
    block.send(row + kAhead * step);
    block.reduce(row);
    block.finish(row - kBehind * step);
  }
}

}  // namespace

std::int64_t launch_two_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                                      cudaStream_t stream) {
  const int vectors = vectors_of(args);
  // Each rank needs a row of its own: only if all ranks send to each other are calls kept apart.
  if (vectors == 0 || args.x.shape[0] < links.ranks) return 0;
  // Rows for several calls are divided evenly, so that no call has too few.
  const auto max_groups = static_cast<std::int64_t>(kAreaWords) / (2 * (links.ranks - 1) * vectors);
  const std::int64_t all_groups = divide_up(args.x.shape[0], links.ranks);
  const auto groups = static_cast<int>(divide_up(all_groups, divide_up(all_groups, max_groups)));
  const auto rows = static_cast<int>(std::min(std::int64_t{groups} * links.ranks, args.x.shape[0]));
  const int per_thread = vectors <= kMaxThreads ? 1 : 2;
  const auto threads = static_cast<int>(divide_up(vectors, 32 * per_thread) * 32);
  // All blocks must run concurrently. An odd number, so that each has rows of all owners.
  const int room = links.multiprocessors * (kMaxThreads / std::max(threads, kMinThreads));
  const int blocks = std::min(rows, (room - 1) | 1);
  dispatch(args.x.dtype, links.ranks, [&]<typename T, int kRanks>() {
    const Params<T> p{norm_params<T>(args, vectors), rows, groups};
    const auto kernel = per_thread == 1 ? two_shot_rms_norm_kernel<T, kRanks, 1>
                                        : two_shot_rms_norm_kernel<T, kRanks, 2>;
    launch("launching the fused two-shot all_reduce and rms_norm", kernel, links,
           dim3(static_cast<unsigned>(blocks)), threads, 1, stream, p);
  });
  return rows;
}

}  // namespace nvllm::ipc::peer
