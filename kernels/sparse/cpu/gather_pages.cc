// Gathers pages on the CPU: a task for each sequence and KV head copies the heads of its tokens
// with memcpy. Launcher: gather_pages(), at the end.
#include "kernels/sparse/gather_pages.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/cpu/rows.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels::cpu {
namespace {

// The keys or values of a block and KV head, wherever they are.
struct Source {
  const unsigned char* data;
  std::int64_t token_bytes;  // between tokens
};

struct Block {
  Source keys, values;

  Block(const GatherPages& args, std::int64_t block, std::int64_t kv_head) {
    const TensorView& resident = args.resident.keys;
    const auto size = static_cast<std::int64_t>(size_of(resident.dtype));
    const std::int64_t mapped = args.block_map.as<std::int32_t>()[block];
    if (mapped >= 0) {
      const std::int64_t at = (mapped * resident.stride[0] + kv_head * resident.stride[2]) * size;
      keys = {resident.as<unsigned char>() + at, resident.stride[1] * size};
      values = {args.resident.values.as<unsigned char>() + at, resident.stride[1] * size};
    } else {
      const std::int64_t token = args.resident.kv_heads() * args.resident.head_dim() * size;
      const unsigned char* part = nullptr;  // the address, as a number
      std::memcpy(&part, args.addresses.as<std::int64_t>() + block, sizeof part);
      part += args.offset + kv_head * args.resident.head_dim() * size;
      keys = {part, token};
      values = {part + token * args.resident.block_size(), token};
    }
  }
};

}  // namespace

void gather_head(const GatherPages& args, std::int64_t sequence, std::int64_t kv_head) {
  const std::int64_t at = sequence * args.resident.kv_heads() + kv_head;
  const std::int64_t length = args.kv_length.as<std::int32_t>()[sequence];
  const std::int64_t count = args.page_counts.as<std::int32_t>()[at];
  const auto* pages = args.pages.as<std::int32_t>() + at * args.pages.shape[2];
  const auto* table = args.block_table.as<std::int32_t>() + sequence * args.block_table.shape[1];
  const TensorView& to = args.to.keys;
  const auto size = static_cast<std::int64_t>(size_of(to.dtype));
  const auto bytes = static_cast<std::size_t>(args.to.head_dim() * size);
  const std::int64_t block_size = args.resident.block_size();
  std::int64_t written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = pages[i] * args.page_tokens;
    const Block block(args, table[first / block_size], kv_head);
    const std::int64_t tokens = std::min(args.page_tokens, length - first);
    for (std::int64_t t = 0; t < tokens; ++t, ++written) {
      const std::int64_t inside = first % block_size + t;
      const std::int64_t offset =
          (sequence * to.stride[0] + written * to.stride[1] + kv_head * to.stride[2]) * size;
      std::memcpy(to.as<unsigned char>() + offset,
                  block.keys.data + inside * block.keys.token_bytes, bytes);
      std::memcpy(args.to.values.as<unsigned char>() + offset,
                  block.values.data + inside * block.values.token_bytes, bytes);
    }
  }
  if (kv_head == 0) {
    args.to_length.as<std::int32_t>()[sequence] = static_cast<std::int32_t>(written);
  }
}

void gather_pages(const GatherPages& args, Stream& stream) {
  nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
  queue.submit([args, &pool = queue.thread_pool()] {
    const std::int64_t kv_heads = args.resident.kv_heads();
    pool.run(args.page_counts.elements(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        gather_head(args, at / kv_heads, at % kv_heads);
      }
    });
  });
}

}  // namespace nvllm::kernels::cpu
