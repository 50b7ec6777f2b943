// Small copies on the GPU. CopyLastKv uses one block for the keys of a sequence and one for its
// values; CopyToRing one thread per word.
#include <algorithm>

#include "kernels/common/sm80/launch.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/copy.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kKvThreads = 128;

// Strides in units; a unit is the widest possible load and store.
template <typename Unit>
struct Params {
  Unit *to_keys, *to_values;
  const Unit *from_keys, *from_values;
  const int *kv_length, *block_table;  // block_table nullptr: sequence s lies in block s
  long long to_block, to_token, from_block, from_token, table_blocks;
  int block_size, units;  // units: of a token
};

// gridDim: (sequences, keys and values)
template <typename Unit>
__global__ void __launch_bounds__(kKvThreads) copy_last_kv_kernel(const Params<Unit> p) {
  const int s = blockIdx.x, position = p.kv_length[s] - 1;
  if (position < 0) return;
  const long long block =
      p.block_table == nullptr ? s : p.block_table[s * p.table_blocks + position / p.block_size];
  const int inside = position % p.block_size;
  const Unit* from = (blockIdx.y == 0 ? p.from_keys : p.from_values) + block * p.from_block +
                     inside * p.from_token;
  Unit* to = (blockIdx.y == 0 ? p.to_keys : p.to_values) + block * p.to_block + inside * p.to_token;
  for (int i = threadIdx.x; i < p.units; i += kKvThreads) to[i] = from[i];
}

template <typename Unit>
void launch(const CopyLastKv& args, Stream& stream) {
  const KvView &to = args.to, &from = args.from;
  const auto element = static_cast<std::int64_t>(size_of(from.keys.dtype));
  const auto units = [&](std::int64_t elements) {
    return elements * element / static_cast<std::int64_t>(sizeof(Unit));
  };
  Params<Unit> p;
  p.to_keys = to.keys.as<Unit>();
  p.to_values = to.values.as<Unit>();
  p.from_keys = from.keys.as<Unit>();
  p.from_values = from.values.as<Unit>();
  p.kv_length = args.kv_length.as<int>();
  p.block_table = from.block_table.as<int>();
  p.to_block = units(to.keys.stride[0]);
  p.to_token = units(to.keys.stride[1]);
  p.from_block = units(from.keys.stride[0]);
  p.from_token = units(from.keys.stride[1]);
  p.table_blocks = from.block_table.data == nullptr ? 0 : from.block_table.shape[1];
  p.block_size = static_cast<int>(from.block_size());
  p.units = static_cast<int>(units(from.kv_heads() * from.head_dim()));
  const dim3 grid(static_cast<unsigned>(args.kv_length.shape[0]), 2);
  copy_last_kv_kernel<<<grid, kKvThreads, 0, nvllm::cuda::native(stream)>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching copy_last_kv");
}

// Whether a cache's tokens consist of 16-byte vectors at multiples of 16 bytes.
bool in_sixteens(const TensorView& keys, const TensorView& values) {
  const auto element = static_cast<std::int64_t>(size_of(keys.dtype));
  return keys.aligned(16) && values.aligned(16) && keys.stride[0] * element % 16 == 0 &&
         keys.stride[1] * element % 16 == 0 && keys.shape[2] * keys.shape[3] * element % 16 == 0;
}

constexpr int kRingThreads = 256;

__global__ void __launch_bounds__(kRingThreads)
    copy_to_ring_kernel(const int* words, const int* index, int* ring, long long entry_words,
                        long long count) {
  pdl_begin();
  const long long i = blockIdx.x * static_cast<long long>(kRingThreads) + threadIdx.x;
  if (i < count) ring[*index * entry_words + i] = words[i];
}

}  // namespace

void copy_last_kv(const CopyLastKv& args, Stream& stream) {
  if (in_sixteens(args.to.keys, args.to.values) && in_sixteens(args.from.keys, args.from.values)) {
    launch<uint4>(args, stream);
  } else if (size_of(args.from.keys.dtype) == 4) {
    launch<unsigned>(args, stream);
  } else {
    launch<unsigned short>(args, stream);
  }
}

void copy_to_ring(const CopyToRing& args, Stream& stream) {
  const long long count = args.words.shape[0];
  launch_with_pdl("launching copy_to_ring", copy_to_ring_kernel, blocks_for(count, kRingThreads),
                  kRingThreads, nvllm::cuda::native(stream), args.words.as<int>(),
                  args.index.as<int>(), args.ring.as<int>(),
                  static_cast<long long>(args.ring.shape[1]), count);
}

// A copy of up to 64 KiB from pageable memory takes the bytes into the stream's command at once,
// without a wait. It delays a stream less than a copy from pinned memory, and takes less host time
// than a kernel that has the words as arguments (docs/performance.md, "Between two steps").
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  constexpr std::int64_t kAtOnce = (64 << 10) / sizeof(std::uint32_t);
  for (std::int64_t done = 0; done < count; done += kAtOnce) {
    const auto bytes = static_cast<std::size_t>(std::min(kAtOnce, count - done)) * sizeof(*words);
    nvllm::cuda::check(cudaMemcpyAsync(to + done, words + done, bytes, cudaMemcpyHostToDevice,
                                       nvllm::cuda::native(stream)),
                       "writing words");
  }
}

}  // namespace nvllm::kernels::cuda
