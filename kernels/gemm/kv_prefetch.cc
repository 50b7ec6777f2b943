#include "kernels/gemm/kv_prefetch.h"

#include "base/error.h"

namespace nvllm::kernels {

void check_kv_ahead(const KvAhead& ahead, const char* operation) {
  check_kv_view(ahead.kv, operation);
  const TensorView& lengths = ahead.kv_length;
  const bool listed = lengths.data != nullptr && lengths.rank == 1 && lengths.dtype == DType::i32;
  if (!listed) {
    fail(operation, ": kv_length of what is read ahead is ", lengths.describe(),
         "; it must be int32 [sequences]");
  }
  require_contiguous(lengths, operation, "kv_length");
  const TensorView& table = ahead.kv.block_table;
  const std::int64_t known = table.data == nullptr ? ahead.kv.blocks() : table.shape[0];
  if (lengths.shape[0] > known) {
    fail(operation, ": kv_length of what is read ahead is ", lengths.describe(), ", but there are ",
         known, table.data == nullptr ? " blocks" : " rows of block_table");
  }
  if (ahead.turn < 0) fail(operation, ": turn is ", ahead.turn, "; it must not be negative");
}

}  // namespace nvllm::kernels
