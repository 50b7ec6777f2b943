#include "kernels/sparse/dequantize_keys.h"

#include "base/error.h"
#include "device/e4m3.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/e4m3_vector.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kCheck("dequantize_keys");

template <typename T>
void dequantize_token(const DequantizeKeys& args, std::int64_t token) {
  const KvView& kv = args.kv;
  const std::int64_t head_dim = kv.head_dim(), inside = token % kv.block_size();
  for (std::int64_t head = 0; head < kv.kv_heads(); ++head) {
    const E4m3* from = kv.keys.as<E4m3>() + kv.offset(kv.block_of(0, token), inside, head);
    T* to = args.out.as<T>() + (token * kv.kv_heads() + head) * head_dim;
    const __m256 factor = _mm256_set1_ps(256 * key_scale(args.kv_scales, head));
    for (std::int64_t d = 0; d < head_dim; d += kLanes)
      store8(to + d, load8_e4m3(from + d, factor));
  }
}

void check(const DequantizeKeys& args) {
  constexpr std::int64_t kMultiple = 16;
  const KvView& kv = args.kv;
  check_kv_view(kv, kCheck.operation());
  check_kv_scales(args.kv_scales, kv, kCheck.operation());
  if (kv.keys.dtype != DType::u8 || kv.head_dim() % kMultiple != 0 || !kv.keys.aligned(kMultiple) ||
      kv.keys.stride[1] % kMultiple != 0 || kv.keys.stride[2] % kMultiple != 0) {
    fail("dequantize_keys: keys are ", kv.keys.describe(), "; they must be E4M3, with heads of a ",
         "multiple of ", kMultiple, " bytes at multiples of as many");
  }
  const std::int64_t capacity = args.out.rank == 3 ? args.out.shape[0] : 0;
  kCheck.require_floats(args.out, "out", 3, "[tokens, kv_heads, head_dim]");
  kCheck.require_dense(args.out, "out", args.out.dtype, {capacity, kv.kv_heads(), kv.head_dim()});
  const std::int64_t blocks = kv.block_table.data == nullptr ? 1 : kv.block_table.shape[1];
  if (args.tokens < 0 || args.tokens > capacity || args.tokens > blocks * kv.block_size() ||
      !args.out.aligned(kMultiple)) {
    fail("dequantize_keys: tokens is ", args.tokens, ", out is ", args.out.describe(),
         ", and the cache holds ", blocks * kv.block_size(),
         " tokens; there must be as many in both, and out at a multiple of ", kMultiple, " bytes");
  }
}

}  // namespace

void dequantize_keys(const DequantizeKeys& args, Stream& stream) {
  check(args);
  if (args.tokens == 0 || args.kv.kv_heads() == 0) return;
  NVLLM_ON_BACKEND(stream, dequantize_keys(args, stream));
}

void cpu::dequantize_keys(const DequantizeKeys& args, Stream& stream) {
  submit_rows(stream, args.tokens, args.kv.kv_heads() * args.kv.head_dim() * 4,
              [args](std::int64_t begin, std::int64_t end) {
                with_element_type(args.out.dtype, [&]<typename T>(T) {
                  for (std::int64_t token = begin; token < end; ++token)
                    dequantize_token<T>(args, token);
                });
              });
}

}  // namespace nvllm::kernels
