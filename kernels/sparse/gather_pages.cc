#include "kernels/sparse/gather_pages.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("gather_pages");

void check_ints(const TensorView& tensor, const char* name, DType dtype,
                std::initializer_list<std::int64_t> shape) {
  kCheck.require(tensor, name, dtype, shape);
  kCheck.require_dense(tensor, name);
}

}  // namespace

void check_gather_pages(const GatherPages& args) {
  check_kv_view(args.to, kCheck.operation());
  check_kv_view(args.resident, kCheck.operation());
  const std::int64_t sequences = args.kv_length.rank == 1 ? args.kv_length.shape[0] : 0;
  const std::int64_t kv_heads = args.resident.kv_heads();
  const std::int64_t budget = args.pages.rank == 3 ? args.pages.shape[2] : 0;
  check_ints(args.kv_length, "kv_length", DType::i32, {sequences});
  check_ints(args.to_length, "to_length", DType::i32, {sequences});
  check_ints(args.pages, "pages", DType::i32, {sequences, kv_heads, budget});
  check_ints(args.page_counts, "page_counts", DType::i32, {sequences, kv_heads});
  check_ints(args.block_table, "block_table", DType::i32, {sequences, args.block_table.shape[1]});
  check_ints(args.block_map, "block_map", DType::i32, {args.block_map.shape[0]});
  check_ints(args.addresses, "addresses", DType::i64, {args.block_map.shape[0]});
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
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::gather_pages(args, stream);
#endif
  cpu::gather_pages(args, stream);
}

void gather_pages_reference(const GatherPages& args) {
  check_gather_pages(args);
  const std::int64_t sequences = args.kv_length.shape[0], kv_heads = args.resident.kv_heads();
  for (std::int64_t s = 0; s < sequences; ++s) {
    if (kv_heads == 0) args.to_length.as<std::int32_t>()[s] = 0;
    for (std::int64_t g = 0; g < kv_heads; ++g) cpu::gather_head(args, s, g);
  }
}

}  // namespace nvllm::kernels
