#include "kernels/pointwise/copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/cpu/stream.h"
#include "kernels/common/arguments.h"
#include "kernels/pointwise/backends.h"

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

void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count,
                 Stream& stream) {
  if (count == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::write_words(to, words, count, stream);
#endif
  nvllm::cpu::stream(stream).submit([to, kept = std::vector<std::uint32_t>(words, words + count)] {
    std::copy(kept.begin(), kept.end(), to);
  });
}

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
  check.require_dense(args.kv_length, "kv_length", DType::i32, {args.kv_length.shape[0]});
  if (table.data != nullptr && table.shape[0] < args.kv_length.shape[0]) {
    fail("copy_last_kv: block_table is ", table.describe(), ", but there are ",
         args.kv_length.shape[0], " sequences");
  }
}

namespace {

void copy_last_kv_cpu(const CopyLastKv& args) {
  const KvView &to = args.to, &from = args.from;
  const auto size = static_cast<std::int64_t>(size_of(from.keys.dtype));
  const std::int64_t bytes = from.kv_heads() * from.head_dim() * size;
  for (std::int64_t s = 0; s < args.kv_length.shape[0]; ++s) {
    const std::int64_t position = args.kv_length.as<std::int32_t>()[s] - 1;
    if (position < 0 || bytes == 0) continue;
    const std::int64_t block = from.block_of(s, position), inside = position % from.block_size();
    const std::int64_t at = from.offset(block, inside, 0) * size;
    const std::int64_t to_at = to.offset(block, inside, 0) * size;
    std::memcpy(to.keys.as<char>() + to_at, from.keys.as<char>() + at, bytes);
    std::memcpy(to.values.as<char>() + to_at, from.values.as<char>() + at, bytes);
  }
}

}  // namespace

void copy_last_kv(const CopyLastKv& args, Stream& stream) {
  check_copy_last_kv(args);
  if (args.kv_length.shape[0] == 0 || args.from.keys.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::copy_last_kv(args, stream);
#endif
  // Few bytes: the plain definition in the stream's order.
  nvllm::cpu::stream(stream).submit([args] { copy_last_kv_cpu(args); });
}

void check_copy_to_ring(const CopyToRing& args) {
  constexpr Arguments check("copy_to_ring");
  const std::int64_t words = args.words.shape[0];
  check.require_dense(args.words, "words", DType::i32, {words});
  check.require_dense(args.index, "index", DType::i32, {1});
  check.require_dense(args.ring, "ring", DType::i32, {args.ring.shape[0], args.ring.shape[1]});
  if (args.ring.shape[1] < words) {
    fail(check.operation(), ": ring is ", args.ring.describe(), "; its entries must be for ", words,
         " words or more");
  }
}

void copy_to_ring(const CopyToRing& args, Stream& stream) {
  check_copy_to_ring(args);
  if (args.words.shape[0] == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::copy_to_ring(args, stream);
#endif
  nvllm::cpu::stream(stream).submit([args] { copy_to_ring_reference(args); });
}

void copy_to_ring_reference(const CopyToRing& args) {
  check_copy_to_ring(args);
  std::copy_n(args.words.as<std::int32_t>(), args.words.shape[0],
              args.ring.as<std::int32_t>() + *args.index.as<std::int32_t>() * args.ring.shape[1]);
}

}  // namespace nvllm::kernels
