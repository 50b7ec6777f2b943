#include "kernels/sparse/prompt_rows.h"

#include "base/error.h"
#include "device/e4m3.h"
#include "kernels/common/cpu/e4m3_vector.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kDequantize("dequantize_keys");
constexpr std::int64_t kAlignment = 16;  // bytes that are loaded at a time

void check_steps(const TensorView& tensor, const char* name, const Arguments& check) {
  const auto elements = kAlignment / static_cast<std::int64_t>(size_of(tensor.dtype));
  bool fits = tensor.aligned(kAlignment);
  for (int axis = 0; axis < tensor.rank - 1; ++axis) {
    fits &= tensor.shape[axis] <= 1 || tensor.stride[axis] % elements == 0;
  }
  if (!fits) {
    fail(check.operation(), ": ", name, " is ", tensor.describe(), " at ", tensor.data,
         "; every head must begin at a multiple of ", kAlignment, " bytes");
  }
}

void check_heads(const PromptRows& rows, const Arguments& check) {
  if (rows.group < 1 || rows.first_head < 0 || rows.first_head >= rows.group) {
    fail(check.operation(), ": first_head is ", rows.first_head, " of a group of ", rows.group,
         "; it must be in its group");
  }
  if (rows.heads() > 0 && rows.kv_head(rows.heads() - 1) >= rows.kv.kv_heads()) {
    fail(check.operation(), ": q is ", rows.q.describe(), ", keys are ", rows.kv.keys.describe(),
         "; that is too few KV heads for groups of ", rows.group);
  }
}

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

void check_dequantize_keys(const DequantizeKeys& args) {
  constexpr std::int64_t kMultiple = 16;
  const KvView& kv = args.kv;
  check_kv_view(kv, kDequantize.operation());
  check_kv_scales(args.kv_scales, kv, kDequantize.operation());
  if (kv.keys.dtype != DType::u8 || kv.head_dim() % kMultiple != 0 || !kv.keys.aligned(kMultiple) ||
      kv.keys.stride[1] % kMultiple != 0 || kv.keys.stride[2] % kMultiple != 0) {
    fail("dequantize_keys: keys are ", kv.keys.describe(), "; they must be E4M3, with heads of a ",
         "multiple of ", kMultiple, " bytes at multiples of as many");
  }
  const std::int64_t capacity = args.out.rank == 3 ? args.out.shape[0] : 0;
  kDequantize.require_floats(args.out, "out", 3, "[tokens, kv_heads, head_dim]");
  kDequantize.require_dense(args.out, "out", args.out.dtype,
                            {capacity, kv.kv_heads(), kv.head_dim()});
  const std::int64_t blocks = kv.block_table.data == nullptr ? 1 : kv.block_table.shape[1];
  if (args.tokens < 0 || args.tokens > capacity || args.tokens > blocks * kv.block_size() ||
      !args.out.aligned(kMultiple)) {
    fail("dequantize_keys: tokens is ", args.tokens, ", out is ", args.out.describe(),
         ", and the cache holds ", blocks * kv.block_size(),
         " tokens; there must be as many in both, and out at a multiple of ", kMultiple, " bytes");
  }
}

}  // namespace

void check_prompt_rows(const PromptRows& rows, const Arguments& check) {
  check.require_floats(rows.q, "q", 3, "[rows, heads, head_dim]");
  check_kv_view(rows.kv, check.operation());
  const std::int64_t head_dim = rows.head_dim();
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    fail(check.operation(), ": q is ", rows.q.describe(),
         "; head_dim must be a multiple of 8 up to ", kMaxHeadDim);
  }
  if (rows.kv.keys.dtype != rows.q.dtype || rows.kv.head_dim() != head_dim) {
    fail(check.operation(), ": keys are ", rows.kv.keys.describe(), ", which do not fit q, ",
         rows.q.describe());
  }
  check_heads(rows, check);
  if (rows.first_position < 0) {
    fail(check.operation(), ": first_position is ", rows.first_position, "; it must be at least 0");
  }
  if (rows.q.elements() == 0) return;
  TensorView row = rows.q;  // rows may lie apart, a row itself not
  row.shape[0] = 1;
  check.require_dense(row, "a row of q");
  check_steps(rows.q, "q", check);
  check_steps(rows.kv.keys, "keys", check);
  const TensorView& table = rows.kv.block_table;
  const std::int64_t blocks = table.data == nullptr ? 1 : table.shape[1];
  if (table.data != nullptr && table.shape[0] != 1) {
    fail(check.operation(), ": block_table is ", table.describe(), "; it must be of one sequence");
  }
  if (blocks * rows.kv.block_size() < rows.tokens()) {
    fail(check.operation(), ": the rows end at token ", rows.tokens(), ", but the cache holds ",
         blocks, " blocks of ", rows.kv.block_size());
  }
}

void dequantize_keys(const DequantizeKeys& args, Stream& stream) {
  check_dequantize_keys(args);
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
