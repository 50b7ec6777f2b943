// Gathers pages on the GPU: one block per page of a sequence and KV head, 16 bytes per thread at a
// time. Pinned host memory is read in place; this many threads keep the link busy. Shapes are those
// of kernels::GatherPages.
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/gather_pages.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 4;  // loads in flight per thread

struct GatherParams {
  uint4 *to_keys, *to_values;
  const uint4 *resident_keys, *resident_values;
  int* to_length;
  const int *pages, *counts, *lengths, *table, *block_map;
  const long long* addresses;
  // In vectors of 16 bytes.
  long long to_block, to_token, to_head, resident_block, resident_token, resident_head;
  long long offset;
  int head;  // vectors of a head
  int kv_heads, budget, table_width, block_size, page_tokens;

  explicit GatherParams(const GatherPages& args)
      : to_keys(args.to.keys.as<uint4>()),
        to_values(args.to.values.as<uint4>()),
        resident_keys(args.resident.keys.as<uint4>()),
        resident_values(args.resident.values.as<uint4>()),
        to_length(args.to_length.as<int>()),
        pages(args.pages.as<int>()),
        counts(args.page_counts.as<int>()),
        lengths(args.kv_length.as<int>()),
        table(args.block_table.as<int>()),
        block_map(args.block_map.as<int>()),
        addresses(args.addresses.as<long long>()),
        offset(args.offset / 16),
        kv_heads(static_cast<int>(args.resident.kv_heads())),
        budget(static_cast<int>(args.pages.shape[2])),
        table_width(static_cast<int>(args.block_table.shape[1])),
        block_size(static_cast<int>(args.resident.block_size())),
        page_tokens(static_cast<int>(args.page_tokens)) {
    const auto elements = static_cast<long long>(16 / size_of(args.to.keys.dtype));
    head = static_cast<int>(args.to.head_dim() / elements);
    to_block = args.to.keys.stride[0] / elements;
    to_token = args.to.keys.stride[1] / elements;
    to_head = args.to.keys.stride[2] / elements;
    resident_block = args.resident.keys.stride[0] / elements;
    resident_token = args.resident.keys.stride[1] / elements;
    resident_head = args.resident.keys.stride[2] / elements;
  }
};

__global__ void __launch_bounds__(kThreads) gather_pages_kernel(const GatherParams p) {
  pdl_begin();
  const int i = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  const int at = sequence * p.kv_heads + kv_head, count = p.counts[at];
  const int length = p.lengths[sequence];
  const int* pages = p.pages + static_cast<long long>(at) * p.budget;
  if (i == 0 && kv_head == 0 && threadIdx.x == 0) {
    const int whole = (count - 1) * p.page_tokens;
    const int last = count == 0 ? 0 : pages[count - 1] * p.page_tokens;
    p.to_length[sequence] = count == 0 ? 0 : whole + min(p.page_tokens, length - last);
  }
  if (i >= count) return;
  const int first = pages[i] * p.page_tokens, inside = first % p.block_size;
  const int tokens = min(p.page_tokens, length - first);
  const int block =
      p.table[static_cast<long long>(sequence) * p.table_width + first / p.block_size];
  const int mapped = p.block_map[block];
  const uint4 *keys, *values;
  long long token = p.resident_token;
  if (mapped >= 0) {
    const long long from = mapped * p.resident_block + kv_head * p.resident_head;
    keys = p.resident_keys + from;
    values = p.resident_values + from;
  } else {
    token = static_cast<long long>(p.kv_heads) * p.head;
    keys = reinterpret_cast<const uint4*>(p.addresses[block]) + p.offset +
           static_cast<long long>(kv_head) * p.head;
    values = keys + token * p.block_size;
  }
  const long long to = sequence * p.to_block + i * p.page_tokens * p.to_token + kv_head * p.to_head;
  // Keys come first, then values: vector v belongs to token v / head.
  const int vectors = tokens * p.head;
  for (int begin = threadIdx.x; begin < 2 * vectors; begin += kUnroll * kThreads) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int v = begin + u * kThreads;
      if (v >= 2 * vectors) break;
      const int w = v < vectors ? v : v - vectors;
      const uint4* from = v < vectors ? keys : values;
      loaded[u] = from[(inside + w / p.head) * token + w % p.head];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int v = begin + u * kThreads;
      if (v >= 2 * vectors) break;
      const int w = v < vectors ? v : v - vectors;
      uint4* into = v < vectors ? p.to_keys : p.to_values;
      into[to + w / p.head * p.to_token + w % p.head] = loaded[u];
    }
  }
}

}  // namespace

void gather_pages(const GatherPages& args, Stream& stream) {
  const GatherParams p(args);
  const dim3 grid(static_cast<unsigned>(p.budget), static_cast<unsigned>(p.kv_heads),
                  static_cast<unsigned>(args.kv_length.shape[0]));
  launch_with_pdl("launching gather_pages", gather_pages_kernel, grid, kThreads,
                  nvllm::cuda::native(stream), p);
}

}  // namespace nvllm::kernels::cuda
