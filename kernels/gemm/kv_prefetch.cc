#include "kernels/gemm/kv_prefetch.h"

#include "base/error.h"

namespace nvllm::kernels {

void check_kv_prefetch(const KvPrefetch& prefetch, const char* operation) {
  check_kv_view(prefetch.kv, operation);
  const TensorView& lengths = prefetch.kv_length;
  const bool listed = lengths.data != nullptr && lengths.rank == 1 && lengths.dtype == DType::i32;
  if (!listed) {
    fail(operation, ": kv_length of the KV prefetch is ", lengths.describe(),
         "; it must be int32 [sequences]");
  }
  require_contiguous(lengths, operation, "kv_length");
  const TensorView& table = prefetch.kv.block_table;
  const std::int64_t known = table.data == nullptr ? prefetch.kv.blocks() : table.shape[0];
  if (lengths.shape[0] > known) {
    fail(operation, ": kv_length of the KV prefetch is ", lengths.describe(), ", but there are ",
         known, table.data == nullptr ? " blocks" : " rows of block_table");
  }
  if (prefetch.share < 0)
    fail(operation, ": share is ", prefetch.share, "; it must not be negative");
}

}  // namespace nvllm::kernels
