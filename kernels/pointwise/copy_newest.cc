#include "kernels/pointwise/copy_last_kv.h"

#include <cstring>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/cpu/copy_last_kv.h"
#ifdef NVLLM_CUDA
#include "kernels/pointwise/sm80/copy_last_kv.h"
#endif

namespace nvllm::kernels {
namespace {

void require_dense_tokens(const TensorView& cache, const char* name) {
  const std::int64_t heads = cache.shape[2], dim = cache.shape[3];
  if (heads > 1 && cache.stride[2] != dim) {
    fail("copy_last_kv: ", name, " is ", cache.describe(), " with stride ", cache.stride[2],
         " of axis 2; it must be ", dim, ", as the tokens must be dense");
  }
}

}  // namespace

void check_copy_last_kv(const CopyLastKv& args) {
  constexpr Arguments check("copy_last_kv");
  check_kv_view(args.to, check.operation());
  check_kv_view(args.from, check.operation());
  if (args.to.keys.dtype != args.from.keys.dtype || args.to.keys.shape != args.from.keys.shape) {
    fail("copy_last_kv: `to` is of ", args.to.keys.describe(), ", but `from` of ",
         args.from.keys.describe());
  }
  require_dense_tokens(args.to.keys, "to");
  require_dense_tokens(args.from.keys, "from");
  const TensorView& table = args.from.block_table;
  check.require(args.kv_length, "kv_length", DType::i32, {args.kv_length.shape[0]});
  check.require_dense(args.kv_length, "kv_length");
  if (table.data != nullptr && table.shape[0] < args.kv_length.shape[0]) {
    fail("copy_last_kv: block_table is ", table.describe(), ", but there are ",
         args.kv_length.shape[0], " sequences");
  }
}

void copy_last_kv(const CopyLastKv& args, Stream& stream) {
  check_copy_last_kv(args);
  if (args.kv_length.shape[0] == 0 || args.from.keys.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::copy_last_kv(args, stream);
#endif
  cpu::copy_last_kv(args, stream);
}

void copy_last_kv_reference(const CopyLastKv& args) {
  check_copy_last_kv(args);
  const KvView &to = args.to, &from = args.from;
  const auto size = static_cast<std::int64_t>(size_of(from.keys.dtype));
  const std::int64_t bytes = from.kv_heads() * from.head_dim() * size;
  for (std::int64_t s = 0; s < args.kv_length.shape[0]; ++s) {
    const std::int64_t position = args.kv_length.as<std::int32_t>()[s] - 1;
    if (position < 0 || bytes == 0) continue;
    const TensorView& table = from.block_table;
    const std::int64_t block =
        table.data == nullptr
            ? s
            : table.as<std::int32_t>()[s * table.shape[1] + position / from.block_size()];
    const std::int64_t inside = position % from.block_size();
    const auto place = [&](const TensorView& cache) {
      return cache.as<char>() + (block * cache.stride[0] + inside * cache.stride[1]) * size;
    };
    std::memcpy(place(to.keys), place(from.keys), static_cast<std::size_t>(bytes));
    std::memcpy(place(to.values), place(from.values), static_cast<std::size_t>(bytes));
  }
}

}  // namespace nvllm::kernels
