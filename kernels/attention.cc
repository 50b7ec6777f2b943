#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/attention.h"
#ifdef NVLLM_CUDA
#include "kernels/cuda/attention.h"
#endif

namespace nvllm::kernels {
namespace {

// Every version may load 16 bytes at a time.
constexpr std::int64_t kAlignment = 16;

void check_vectors(const TensorView& tensor, const char* name) {
  if (tensor.elements() == 0) return;
  if (tensor.data == nullptr) fail("attention: ", name, " has no memory");
  if (!tensor.aligned(kAlignment)) {
    fail("attention: ", name, " lies at ", tensor.data, "; it must start at a multiple of ",
         kAlignment, " bytes");
  }
  const auto elements = kAlignment / static_cast<std::int64_t>(size_of(tensor.dtype));
  for (int axis = 0; axis < tensor.rank - 1; ++axis) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] % elements != 0) {
      fail("attention: ", name, " is ", tensor.describe(), " with stride ", tensor.stride[axis],
           " of axis ", axis, "; it must be a multiple of ", elements);
    }
  }
}

void check_queries(const TensorView& q) {
  const bool known = q.dtype == DType::f32 || q.dtype == DType::bf16 || q.dtype == DType::f16;
  if (!known) fail("attention: q is ", q.describe(), "; it must be float32, bfloat16 or float16");
  if (q.rank != 3 || q.shape[2] < 8 || q.shape[2] > kMaxHeadDim || q.shape[2] % 8 != 0) {
    fail("attention: q is ", q.describe(),
         "; it must be [rows, heads, head_dim], head_dim a multiple of 8 up to ", kMaxHeadDim);
  }
  if (q.elements() == 0) return;
  TensorView row = q;  // rows may lie apart, a row itself not
  row.shape[0] = 1;
  require_contiguous(row, "attention", "a row of q");
  if (q.shape[0] > 1 && q.stride[0] < q.shape[1] * q.shape[2]) {
    fail("attention: q is ", q.describe(), " with rows ", q.stride[0],
         " elements apart; they overlap");
  }
  check_vectors(q, "q");
}

void check_dense(const TensorView& tensor, const char* name, DType type, int rank) {
  if (tensor.dtype != type || tensor.rank != rank)
    fail("attention: ", name, " is ", tensor.describe(), "; it must be ", name_of(type), " of ",
         rank, rank == 1 ? " dimension" : " dimensions");
  require_contiguous(tensor, "attention", name);
  if (tensor.elements() > 0 && tensor.data == nullptr) fail("attention: ", name, " has no memory");
  if (!tensor.aligned(size_of(type)))
    fail("attention: ", name, " lies at ", tensor.data, ", which is no address of a ",
         name_of(type));
}

void check_heads(const Attention& args) {
  const std::int64_t heads = args.q.shape[1];
  if (args.group < 1) fail("attention: group is ", args.group, "; it must be at least 1");
  if (args.first_head < 0 || args.first_head >= args.group) {
    fail("attention: first_head is ", args.first_head, "; it must be in a group of ", args.group);
  }
  if (heads > 0 && (args.first_head + heads - 1) / args.group >= args.kv.kv_heads()) {
    fail("attention: q is ", args.q.describe(), ", keys are ", args.kv.keys.describe(),
         "; that is too few KV heads for groups of ", args.group, " from head ", args.first_head);
  }
}

void check_sequences(const Attention& args) {
  check_dense(args.query_start, "query_start", DType::i32, 1);
  check_dense(args.kv_length, "kv_length", DType::i32, 1);
  const std::int64_t rows = args.q.shape[0];
  const std::int64_t sequences = args.kv_length.shape[0];
  if (args.visible.data != nullptr) {
    check_dense(args.visible, "visible", DType::i32, 1);
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

// Of the cache, on the host: where a head of a token lies, in elements.
std::int64_t place(const KvView& kv, std::int64_t sequence, std::int64_t token,
                   std::int64_t kv_head) {
  const TensorView& table = kv.block_table;
  std::int64_t block = sequence;
  if (table.data != nullptr) {
    block = table.as<std::int32_t>()[sequence * table.shape[1] + token / kv.block_size()];
  }
  const auto& stride = kv.keys.stride;
  return block * stride[0] + token % kv.block_size() * stride[1] + kv_head * stride[2];
}

// One head of one row, over the first `tokens` tokens of its sequence.
template <typename T, typename Out>
void reference(const Attention& args, std::int64_t sequence, std::int64_t row, std::int64_t head,
               std::int64_t tokens) {
  const std::int64_t head_dim = args.q.shape[2];
  const std::int64_t heads = args.q.shape[1];
  const std::int64_t kv_head = (args.first_head + head) / args.group;
  const T* q = args.q.as<T>() + row * args.q.stride[0] + head * head_dim;
  std::vector<double> weights(tokens);
  double highest = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* k = args.kv.keys.as<T>() + place(args.kv, sequence, t, kv_head);
    double dot = 0;
    for (std::int64_t i = 0; i < head_dim; ++i) dot += double{to_float(q[i])} * to_float(k[i]);
    weights[t] = dot * args.scale;
    highest = std::max(highest, weights[t]);
  }
  if (std::isinf(highest) && highest < 0) highest = 0;  // all weights are 0
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);

  Out* out = args.out.as<Out>() + (row * heads + head) * head_dim;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    double value = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      value +=
          weights[t] * to_float(args.kv.values.as<T>()[place(args.kv, sequence, t, kv_head) + i]);
    }
    out[i] = from_float<Out>(sum == 0 ? 0.0f : static_cast<float>(value / sum));
  }
  if (args.lse.data != nullptr) {
    args.lse.as<float>()[row * heads + head] = static_cast<float>(highest + std::log(sum));
  }
}

template <typename T, typename Out>
void reference_rows(const Attention& args) {
  const auto* query_start = args.query_start.as<std::int32_t>();
  for (std::int64_t s = 0; s < args.kv_length.shape[0]; ++s) {
    const std::int64_t begin = query_start[s], end = query_start[s + 1];
    const std::int64_t length = args.kv_length.as<std::int32_t>()[s];
    const std::int64_t visible = args.visible.data == nullptr ? length - (end - begin) + 1
                                                              : args.visible.as<std::int32_t>()[s];
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t tokens = std::clamp<std::int64_t>(visible + row - begin, 0, length);
      for (std::int64_t head = 0; head < args.q.shape[1]; ++head) {
        reference<T, Out>(args, s, row, head, tokens);
      }
    }
  }
}

template <typename T>
void reference(const Attention& args) {
  if (args.out.dtype == DType::f32) return reference_rows<T, float>(args);
  reference_rows<T, T>(args);
}

}  // namespace

void check_attention(const Attention& args) {
  const TensorView& q = args.q;
  check_queries(q);
  check_dense(args.out, "out", args.out.dtype == DType::f32 ? DType::f32 : q.dtype, 3);
  check_vectors(args.out, "out");
  if (args.out.shape != q.shape)
    fail("attention: out is ", args.out.describe(), ", which does not fit q, ", q.describe());
  check_kv_view(args.kv, "attention");
  check_vectors(args.kv.keys, "keys");
  check_vectors(args.kv.values, "values");
  if (args.kv.keys.dtype != q.dtype || args.kv.head_dim() != q.shape[2])
    fail("attention: keys are ", args.kv.keys.describe(), ", which do not fit q, ", q.describe());
  check_heads(args);
  check_sequences(args);
  if (args.lse.data != nullptr) {
    check_dense(args.lse, "lse", DType::f32, 2);
    if (args.lse.shape[0] != q.shape[0] || args.lse.shape[1] != q.shape[1])
      fail("attention: lse is ", args.lse.describe(), ", which does not fit q, ", q.describe());
  }
}

void attention(const Attention& args, Stream& stream) {
  check_attention(args);
  if (args.q.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::attention(args, stream);
#endif
  cpu::attention(args, stream);
}

void attention_reference(const Attention& args) {
  check_attention(args);
  switch (args.q.dtype) {
    case DType::f32: return reference<float>(args);
    case DType::bf16: return reference<Bf16>(args);
    default: return reference<F16>(args);
  }
}

}  // namespace nvllm::kernels
