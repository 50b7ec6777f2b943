#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "kernels/attention/backends.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels {
namespace {

// Every implementation may load 16 bytes at a time.
constexpr std::int64_t kAlignment = 16;

void check_vectors(const char* operation, const TensorView& tensor, const char* name) {
  if (tensor.elements() == 0) return;
  if (tensor.data == nullptr) fail(operation, ": ", name, " has no memory");
  if (!tensor.aligned(kAlignment)) {
    fail(operation, ": ", name, " lies at ", tensor.data, "; it must start at a multiple of ",
         kAlignment, " bytes");
  }
  const auto elements = kAlignment / static_cast<std::int64_t>(size_of(tensor.dtype));
  for (int axis = 0; axis < tensor.rank - 1; ++axis) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] % elements != 0) {
      fail(operation, ": ", name, " is ", tensor.describe(), " with stride ", tensor.stride[axis],
           " of axis ", axis, "; it must be a multiple of ", elements);
    }
  }
}

void check_queries(const char* operation, const TensorView& q) {
  const bool known = q.dtype == DType::f32 || q.dtype == DType::bf16 || q.dtype == DType::f16;
  if (!known) fail(operation, ": q is ", q.describe(), "; it must be float32, bfloat16 or float16");
  if (q.rank != 3 || q.shape[2] < 8 || q.shape[2] > kMaxHeadDim || q.shape[2] % 8 != 0) {
    fail(operation, ": q is ", q.describe(),
         "; it must be [rows, heads, head_dim], head_dim a multiple of 8 up to ", kMaxHeadDim);
  }
  if (q.elements() == 0) return;
  TensorView row = q;  // rows may lie apart, a row itself not
  row.shape[0] = 1;
  require_contiguous(row, operation, "a row of q");
  if (q.shape[0] > 1 && q.stride[0] < q.shape[1] * q.shape[2]) {
    fail(operation, ": q is ", q.describe(), " with rows ", q.stride[0],
         " elements apart; they overlap");
  }
  check_vectors(operation, q, "q");
}

void check_dense(const char* operation, const TensorView& tensor, const char* name, DType type,
                 int rank) {
  if (tensor.dtype != type || tensor.rank != rank)
    fail(operation, ": ", name, " is ", tensor.describe(), "; it must be ", name_of(type), " of ",
         rank, rank == 1 ? " dimension" : " dimensions");
  Arguments(operation).require_dense(tensor, name);
}

void check_heads(const char* operation, const Attention& args) {
  const std::int64_t heads = args.q.shape[1];
  if (args.group < 1) fail(operation, ": group is ", args.group, "; it must be at least 1");
  if (args.first_head < 0 || args.first_head >= args.group) {
    fail(operation, ": first_head is ", args.first_head, "; it must be in a group of ", args.group);
  }
  if (heads > 0 && (args.first_head + heads - 1) / args.group >= args.kv.kv_heads()) {
    fail(operation, ": q is ", args.q.describe(), ", keys are ", args.kv.keys.describe(),
         "; that is too few KV heads for groups of ", args.group, " from head ", args.first_head);
  }
}

void check_sinks(const Attention& args) {
  if (args.sinks.data == nullptr) return;
  check_dense("attention", args.sinks, "sinks", args.q.dtype, 1);
  if (args.sinks.shape[0] != args.q.shape[1]) {
    fail("attention: sinks is ", args.sinks.describe(), ", q ", args.q.describe(),
         "; it must have one element for each head");
  }
}

void check_sequences(const Attention& args) {
  check_dense("attention", args.query_start, "query_start", DType::i32, 1);
  check_dense("attention", args.kv_length, "kv_length", DType::i32, 1);
  const std::int64_t rows = args.q.shape[0];
  const std::int64_t sequences = args.kv_length.shape[0];
  if (args.visible.data != nullptr) {
    check_dense("attention", args.visible, "visible", DType::i32, 1);
    if (args.visible.shape[0] != sequences)
      fail("attention: visible is ", args.visible.describe(), ", kv_length ",
           args.kv_length.describe(), "; they must have one length");
  }
  if (args.query_start.shape[0] != sequences + 1) {
    fail("attention: query_start is ", args.query_start.describe(), ", kv_length ",
         args.kv_length.describe(), "; query_start must have one element more");
  }
  const bool paged = args.kv.block_table.data != nullptr;
  const std::int64_t held = paged ? args.kv.block_table.shape[0] : args.kv.blocks();
  if (held < sequences) {
    fail("attention: kv_length is ", args.kv_length.describe(), ", but the cache is of ", held,
         " sequences");
  }
  if (rows > sequences * args.max_query_rows) {
    fail("attention: max_query_rows is ", args.max_query_rows, ", but q has ", rows, " rows of ",
         sequences, " sequences");
  }
  if (rows > 0 && args.max_kv_length < 1) {
    fail("attention: max_kv_length is ", args.max_kv_length, ", but q has ", rows, " rows");
  }
}

// A call for `count` of the sequences. Rows stay where they are. The cache has a block table.
Attention sequences_of(const Attention& args, std::int64_t first, std::int64_t count) {
  Attention part = args;
  part.query_start = args.query_start.rows(first, count + 1);
  part.kv_length = args.kv_length.rows(first, count);
  part.kv.block_table = args.kv.block_table.rows(first, count);
  if (args.visible.data != nullptr) part.visible = args.visible.rows(first, count);
  return part;
}

void enqueue(const Attention& args, Stream& stream) {
  if (args.q.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, attention(args, stream));
}

}  // namespace

void check_attention_rows(const Attention& args, const char* operation) {
  const TensorView& q = args.q;
  check_queries(operation, q);
  check_dense(operation, args.out, "out", args.out.dtype == DType::f32 ? DType::f32 : q.dtype, 3);
  check_vectors(operation, args.out, "out");
  if (args.out.shape != q.shape)
    fail(operation, ": out is ", args.out.describe(), ", which does not fit q, ", q.describe());
  check_kv_view(args.kv, operation);
  const bool of_e4m3 = args.kv.keys.dtype == DType::u8;
  if (of_e4m3 && args.kv.head_dim() % kAlignment != 0) {
    fail(operation, ": keys are ", args.kv.keys.describe(),
         ", E4M3; head_dim must be a multiple of ", kAlignment);
  }
  check_vectors(operation, args.kv.keys, "keys");
  check_vectors(operation, args.kv.values, "values");
  if ((args.kv.keys.dtype != q.dtype && !of_e4m3) || args.kv.head_dim() != q.shape[2])
    fail(operation, ": keys are ", args.kv.keys.describe(), ", which do not fit q, ", q.describe());
  check_kv_scales(args.kv_scales, args.kv, operation);
  check_heads(operation, args);
  if (args.window < 0) {
    fail(operation, ": window is ", args.window, "; it must be a number of tokens, or 0 for all");
  }
  if (args.lse.data == nullptr) return;
  check_dense(operation, args.lse, "lse", DType::f32, 2);
  if (args.lse.shape[0] != q.shape[0] || args.lse.shape[1] != q.shape[1])
    fail(operation, ": lse is ", args.lse.describe(), ", which does not fit q, ", q.describe());
}

void check_attention(const Attention& args) {
  check_attention_rows(args, "attention");
  check_sinks(args);
  check_sequences(args);
}

void attention(const Attention& args, Stream& stream) {
  check_attention(args);
  enqueue(args, stream);
}

void attention(const Attention& args, std::int64_t decode_sequences, Stream& stream) {
  const std::int64_t sequences = args.kv_length.shape[0];
  if (decode_sequences == 0 || decode_sequences == sequences ||
      args.kv.block_table.data == nullptr) {
    return attention(args, stream);
  }
  check_attention(args);
  NVLLM_CHECK(decode_sequences > 0 && decode_sequences < sequences, decode_sequences, " of ",
              sequences, " sequences");
  Attention decode = sequences_of(args, 0, decode_sequences);
  decode.max_query_rows = 1;
  // They may share blocks that the other sequences have just written.
  decode.history_is_visible = false;
  enqueue(decode, stream);
  enqueue(sequences_of(args, decode_sequences, sequences - decode_sequences), stream);
}

void check_combine_attention(const CombineAttention& args) {
  constexpr Arguments check("combine_attention");
  const TensorView& out = args.out;
  if (args.count < 1 || args.count > kMaxAttentionParts) {
    fail("combine_attention: count is ", args.count, "; it must be 1 to ", kMaxAttentionParts);
  }
  check.require_floats(out, "out", 3, "[rows, heads, head_dim]");
  check.require_dense(out, "out");
  check.require_vectors(out, "out");
  const std::int64_t rows = out.shape[0], heads = out.shape[1], head_dim = out.shape[2];
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    fail("combine_attention: out is ", out.describe(), "; head_dim must be a multiple of 8 up to ",
         kMaxHeadDim);
  }
  for (int i = 0; i < args.count; ++i) {
    const CombineAttention::Part& part = args.parts[i];
    check.require_floats(part.out, "a part's out", 3, "[rows, heads, head_dim]");
    check.require_dense(part.out, "a part's out", part.out.dtype, {rows, heads, head_dim});
    check.require_vectors(part.out, "a part's out");
    check.require_dense(part.lse, "a part's lse", DType::f32, {rows, heads});
    if (part.out.data == out.data && part.out.dtype != out.dtype && out.elements() > 0) {
      fail("combine_attention: out is ", out.describe(), " in the place of a part, ",
           part.out.describe(), "; they must have one type");
    }
  }
  if (args.lse.data == nullptr) return;
  check.require_dense(args.lse, "lse", DType::f32, {rows, heads});
}

void combine_attention(const CombineAttention& args, Stream& stream) {
  check_combine_attention(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, combine_attention(args, stream));
}

// --- the combination on the CPU, which is bound by memory: every part is read once and the result
// written once

namespace cpu {
namespace {

__m256 load8(const TensorView& tensor, std::int64_t at) {
  return with_element_type(tensor.dtype,
                           [&]<typename T>(T) { return kernels::load8(tensor.as<T>() + at); });
}

void store8(const TensorView& tensor, std::int64_t at, __m256 value) {
  with_element_type(tensor.dtype,
                    [&]<typename T>(T) { kernels::store8(tensor.as<T>() + at, value); });
}

// Combines one head of one row.
void combine(const CombineAttention& args, std::int64_t head) {
  const auto part_lse = [&](int i) { return args.parts[i].lse.as<float>()[head]; };
  float weight[kMaxAttentionParts], row_max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int i = 0; i < args.count; ++i) row_max = std::max(row_max, part_lse(i));
  const float reference = std::isinf(row_max) && row_max < 0 ? 0 : row_max;
  for (int i = 0; i < args.count; ++i) sum += weight[i] = std::exp(part_lse(i) - reference);
  const __m256 factor = _mm256_set1_ps(sum == 0 ? 0 : 1 / sum);
  const std::int64_t head_dim = args.out.shape[2];
  for (std::int64_t d = head * head_dim; d < (head + 1) * head_dim; d += kLanes) {
    __m256 value = _mm256_setzero_ps();
    for (int i = 0; i < args.count; ++i) {
      if (weight[i] == 0) continue;
      value = _mm256_fmadd_ps(_mm256_set1_ps(weight[i]), load8(args.parts[i].out, d), value);
    }
    store8(args.out, d, _mm256_mul_ps(value, factor));
  }
  if (args.lse.data != nullptr) args.lse.as<float>()[head] = reference + std::log(sum);
}

}  // namespace

void combine_attention(const CombineAttention& args, Stream& stream) {
  const std::int64_t heads = args.out.shape[1];
  const std::int64_t elements = (args.count + 1) * heads * args.out.shape[2];
  submit_rows(stream, args.out.shape[0], elements * static_cast<std::int64_t>(sizeof(float)),
              [args, heads](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin * heads; i < end * heads; ++i) combine(args, i);
              });
}

}  // namespace cpu
}  // namespace nvllm::kernels
