#include "kernels/sparse/gather_pages.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("gather_pages");

// The keys or values of a block and KV head, wherever they are.
struct PageSource {
  const unsigned char* data;
  std::int64_t token_bytes;  // between tokens
};

struct Block {
  PageSource keys, values;

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

// Copies the heads of the tokens of one sequence and KV head.
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

}  // namespace

void check_gather_pages(const GatherPages& args) {
  check_kv_view(args.to, kCheck.operation());
  check_kv_view(args.resident, kCheck.operation());
  const std::int64_t sequences = args.kv_length.rank == 1 ? args.kv_length.shape[0] : 0;
  const std::int64_t kv_heads = args.resident.kv_heads();
  const std::int64_t budget = args.pages.rank == 3 ? args.pages.shape[2] : 0;
  kCheck.require_dense(args.kv_length, "kv_length", DType::i32, {sequences});
  kCheck.require_dense(args.to_length, "to_length", DType::i32, {sequences});
  kCheck.require_dense(args.pages, "pages", DType::i32, {sequences, kv_heads, budget});
  kCheck.require_dense(args.page_counts, "page_counts", DType::i32, {sequences, kv_heads});
  kCheck.require_dense(args.block_table, "block_table", DType::i32,
                       {sequences, args.block_table.shape[1]});
  kCheck.require_dense(args.block_map, "block_map", DType::i32, {args.block_map.shape[0]});
  kCheck.require_dense(args.addresses, "addresses", DType::i64, {args.block_map.shape[0]});
  if (args.page_tokens < 1 || args.resident.block_size() % args.page_tokens != 0) {
    fail("gather_pages: page_tokens is ", args.page_tokens, "; it must divide the block size, ",
         args.resident.block_size());
  }
  const bool alike = args.to.keys.dtype == args.resident.keys.dtype &&
                     args.to.kv_heads() == kv_heads &&
                     args.to.head_dim() == args.resident.head_dim();
  if (!alike || args.to.blocks() < sequences || args.to.block_size() < budget * args.page_tokens) {
    fail("gather_pages: to is ", args.to.keys.describe(), ", resident ",
         args.resident.keys.describe(), "; it must have ", sequences, " blocks of ",
         budget * args.page_tokens, " tokens, and its heads");
  }
  constexpr std::int64_t kAlignment = 16;
  const auto head_bytes =
      args.resident.head_dim() * static_cast<std::int64_t>(size_of(args.resident.keys.dtype));
  if (head_bytes % kAlignment != 0 || args.offset % kAlignment != 0) {
    fail("gather_pages: heads have ", head_bytes, " bytes and the offset is ", args.offset,
         "; both must be multiples of ", kAlignment);
  }
}

void gather_pages(const GatherPages& args, Stream& stream) {
  check_gather_pages(args);
  if (args.page_counts.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, gather_pages(args, stream));
}

// A task for each sequence and KV head.
void cpu::gather_pages(const GatherPages& args, Stream& stream) {
  submit_tasks(stream, args.page_counts.elements(), [args](std::int64_t begin, std::int64_t end) {
    const std::int64_t kv_heads = args.resident.kv_heads();
    for (std::int64_t i = begin; i < end; ++i) gather_head(args, i / kv_heads, i % kv_heads);
  });
}

}  // namespace nvllm::kernels
