// Parameters shared by all attention kernels, and the rows and tokens that a block works on.
//
// The query heads of a KV head share its keys and values, so a kernel sees the rows of one sequence
// and one KV head as packed rows: packed row i is head i % group_heads of query row i /
// group_heads.
//
// The type T of the templates is the type of rows and cache, or E4m3Cache<Row> for rows of type Row
// and an E4m3 cache.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/attention/attention.h"
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

template <typename Row>
struct E4m3Cache {};

template <typename T>
struct AttentionTypes {
  using Row = T;
  using Kv = T;
  static constexpr bool kE4m3 = false;
};
template <typename T>
struct AttentionTypes<E4m3Cache<T>> {
  using Row = T;
  using Kv = E4m3;
  static constexpr bool kE4m3 = true;
};
template <typename T>
inline constexpr bool kIsE4m3 = AttentionTypes<T>::kE4m3;

// Positions are limited to this, so that sums of two of them are ints.
inline constexpr std::int64_t kMaxPosition = 1 << 30;

template <typename T>
struct AttentionParams {
  using Row = typename AttentionTypes<T>::Row;
  using Kv = typename AttentionTypes<T>::Kv;

  Row* out;
  float* floats;  // instead of out; nullptr: results are of type Row
  const Row* q;
  const Kv* keys;
  const Kv* values;
  const int* block_table;  // nullptr: sequence s has block s
  const int* query_start;
  const int* kv_length;
  const int* visible;  // nullptr: the last row attends to all tokens
  float* lse;          // nullptr: not needed
  long long q_row;
  long long kv_block, kv_token, kv_head;  // strides of keys and values
  int sequences;
  int table_width;
  int block_size;
  int block_shift;  // block_size is 1 << block_shift; -1: not a power of two
  int heads;
  int group, first_head;
  int head_dim;
  float scale;
  const float* kv_scales;  // of E4m3: [2][scale_heads]; nullptr: all are 1
  int scale_heads;
  int window;        // max. tokens that a row attends to, in kernels with a window
  const Row* sinks;  // [heads]; nullptr: none

  explicit AttentionParams(const Attention& args)
      : out(args.out.as<Row>()),
        floats(args.out.dtype == DType::f32 ? args.out.as<float>() : nullptr),
        q(args.q.as<Row>()),
        keys(args.kv.keys.as<Kv>()),
        values(args.kv.values.as<Kv>()),
        block_table(args.kv.block_table.as<int>()),
        query_start(args.query_start.as<int>()),
        kv_length(args.kv_length.as<int>()),
        visible(args.visible.as<int>()),
        lse(args.lse.as<float>()),
        q_row(args.q.stride[0]),
        kv_block(args.kv.keys.stride[0]),
        kv_token(args.kv.keys.stride[1]),
        kv_head(args.kv.keys.stride[2]),
        sequences(static_cast<int>(args.kv_length.shape[0])),
        table_width(block_table == nullptr ? 0 : static_cast<int>(args.kv.block_table.shape[1])),
        block_size(static_cast<int>(args.kv.block_size())),
        block_shift(-1),
        heads(static_cast<int>(args.q.shape[1])),
        group(static_cast<int>(args.group)),
        first_head(static_cast<int>(args.first_head)),
        head_dim(static_cast<int>(args.q.shape[2])),
        scale(args.scale),
        kv_scales(args.kv_scales.as<float>()),
        scale_heads(static_cast<int>(args.kv.kv_heads())),
        window(static_cast<int>(std::min(args.window, kMaxPosition))),
        sinks(args.sinks.as<Row>()) {
    for (int shift = 0; shift < 31; ++shift) {
      if (block_size == 1 << shift) block_shift = shift;
    }
  }

  // The number of KV heads that this rank's query heads use.
  int kv_heads() const { return (first_head + heads - 1) / group + 1; }
  // Max. query heads per KV head.
  int max_group_heads() const { return group < heads ? group : heads; }
  // An upper bound of the number of blocks of `block_rows` packed rows that all sequences with
  // `rows` rows have together.
  long long max_row_blocks(long long rows, int block_rows) const {
    return (rows * max_group_heads() + block_rows - 1) / block_rows + sequences;
  }

  // Stores elements of the results.
  __device__ __forceinline__ void store(long long at, float value) const {
    if (floats != nullptr) {
      floats[at] = value;
    } else {
      out[at] = narrow<Row>(value);
    }
  }
  // `at` is even.
  __device__ __forceinline__ void store(long long at, float low, float high) const {
    if (floats != nullptr) {
      *reinterpret_cast<float2*>(floats + at) = make_float2(low, high);
    } else {
      const unsigned bits = narrow<Row>(low).bits;
      *reinterpret_cast<unsigned*>(out + at) = bits | static_cast<unsigned>(narrow<Row>(high).bits)
                                                          << 16;
    }
  }

  // Adds the sink of the head at `index` of [rows, heads] to its sum of weights, which are relative
  // to 2^row_max, or to a new row_max if the sink is far above it.
  __device__ __forceinline__ void add_sink(long long index, float& row_max, float& sum) const;

  // The factors of scores and of weighted values of a KV head.
  __device__ __forceinline__ float score_scale(int kv_head) const {
    if constexpr (!kIsE4m3<T>) return scale;
    return kv_scales == nullptr ? scale : scale * kv_scales[kv_head];
  }
  __device__ __forceinline__ float value_scale(int kv_head) const {
    return !kIsE4m3<T> || kv_scales == nullptr ? 1.0f : kv_scales[scale_heads + kv_head];
  }

  __device__ __forceinline__ int head_begin(int kv_head) const {
    return max(0, kv_head * group - first_head);
  }
  __device__ __forceinline__ int group_heads(int kv_head) const {
    return min(heads, (kv_head + 1) * group - first_head) - head_begin(kv_head);
  }
};

// A block of packed rows of a sequence; sequence < 0: no such block.
struct RowBlock {
  int sequence = -1;
  int first_row = 0;
};

// Finds a block of `block_rows` packed rows by its number. Numbers ascend from sequence to
// sequence; within a sequence the last rows, which have the most tokens, come first. All lanes of a
// warp call it together.
template <typename T>
__device__ __forceinline__ RowBlock find_row_block(const AttentionParams<T>& p, int kv_head,
                                                   int number, int block_rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group_heads = p.group_heads(kv_head);
  for (int first = 0; first < p.sequences; first += 32) {
    const int sequence = min(first + lane, p.sequences - 1);
    const int rows = p.query_start[sequence + 1] - p.query_start[sequence];
    const int blocks =
        first + lane < p.sequences ? (rows * group_heads + block_rows - 1) / block_rows : 0;
    int before = blocks;  // up to and including this sequence
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int left = __shfl_up_sync(~0u, before, lanes);
      if (lane >= lanes) before += left;
    }
    const unsigned beyond = __ballot_sync(~0u, before > number);
    if (beyond != 0) {
      const int found = __ffs(static_cast<int>(beyond)) - 1;
      const int left = __shfl_sync(~0u, before, found) - number;  // 1: its last number
      return {first + found, (left - 1) * block_rows};
    }
    number -= __shfl_sync(~0u, before, 31);
  }
  return {};
}

// Rows of one sequence and one KV head, and the cache location of the sequence's tokens.
template <typename T>
struct AttentionRows {
  const AttentionParams<T>& p;
  int sequence, kv_head;
  int first_row;    // of q
  int packed_rows;  // 0: nothing to do
  int head_begin, group_heads;

  // Without a window a row attends to the first tokens (compare AttentionPart). Kernels for which
  // windows must not cost anything call first_seen() only where kWindowed is true, since the mere
  // call changes the generated code.
  static constexpr bool kWindowed = false;
  __device__ __forceinline__ int first_seen(int /*packed_row*/) const { return 0; }

  __device__ __forceinline__ const typename AttentionTypes<T>::Row* query(int packed_row) const {
    return p.q + (first_row + packed_row / group_heads) * p.q_row +
           (head_begin + packed_row % group_heads) * p.head_dim;
  }
  // The index of a packed row in [rows, heads] tensors.
  __device__ __forceinline__ long long index(int packed_row) const {
    return static_cast<long long>(first_row + packed_row / group_heads) * p.heads + head_begin +
           packed_row % group_heads;
  }
  // The element offset of a token's key and value.
  __device__ __forceinline__ long long kv_offset(int token) const {
    if (p.block_table == nullptr) {
      return sequence * p.kv_block + token * p.kv_token + kv_head * p.kv_head;
    }
    const int block = p.block_shift >= 0 ? token >> p.block_shift : token / p.block_size;
    const int id = p.block_table[static_cast<long long>(sequence) * p.table_width + block];
    return id * p.kv_block + (token - block * p.block_size) * p.kv_token + kv_head * p.kv_head;
  }
};

// All rows of one sequence and one KV head, which attend to its tokens from the first one on or,
// with kWindow, from first_seen(row) on. Token lists (kernels/sparse/sm80/token_lists.cuh) have the
// same interface: `tokens` numbered tokens, of which a packed row attends to the first
// visible(row), and the offset and position of each.
template <typename T, bool kWindow = false>
struct AttentionPart : AttentionRows<T> {
  static constexpr bool kWindowed = kWindow;

  int tokens;         // that the last row attends to
  int first_visible;  // that the first row attends to; may be negative

  __device__ __forceinline__ AttentionPart(const AttentionParams<T>& p, int sequence, int kv_head)
      : AttentionRows<T>{p,
                         sequence,
                         kv_head,
                         p.query_start[sequence],
                         0,
                         p.head_begin(kv_head),
                         p.group_heads(kv_head)} {
    const int rows = p.query_start[sequence + 1] - this->first_row, length = p.kv_length[sequence];
    // Windows of rows that attend to tokens beyond the view begin later.
    const int last_visible = kWindow ? static_cast<int>(kMaxPosition) : length;
    first_visible = p.visible == nullptr ? length - rows + 1
                                         : min(max(p.visible[sequence], -rows), last_visible);
    tokens = max(0, min(length, first_visible + rows - 1));
    this->packed_rows = rows * this->group_heads;
  }
  // From values that another instance has computed, optionally with fewer rows.
  __device__ __forceinline__ AttentionPart(const AttentionParams<T>& p, int sequence, int kv_head,
                                           int first_row, int packed_rows, int tokens,
                                           int first_visible)
      : AttentionRows<T>{p,
                         sequence,
                         kv_head,
                         first_row,
                         packed_rows,
                         p.head_begin(kv_head),
                         p.group_heads(kv_head)},
        tokens(tokens),
        first_visible(first_visible) {}

  // How many tokens a packed row attends to; none if 0 or negative.
  __device__ __forceinline__ int visible(int packed_row) const {
    return min(tokens, first_visible + packed_row / this->group_heads);
  }
  // The first token that a packed row attends to; it never decreases from row to row.
  __device__ __forceinline__ int first_seen(int packed_row) const {
    if constexpr (!kWindow) return 0;
    const int end = first_visible + packed_row / this->group_heads;
    return min(tokens, max(0, end - this->p.window));
  }
  __device__ __forceinline__ int token(int number) const { return number; }
  __device__ __forceinline__ long long kv_offset_at(int number) const {
    return this->kv_offset(number);
  }
};

// Queries that meet keys of E4m3 become float16, which has a smaller range of exponents than a
// bfloat16: a row is multiplied by the power of 2 that brings its largest magnitude just below
// 2^15, and its scores by the inverse. What then becomes subnormal is negligible.
struct QueryScale {
  float factor, inverse;

  __device__ __forceinline__ explicit QueryScale(float largest) {
    // Exponents of the row maximum, of the factor and of its inverse, as float exponent fields.
    const unsigned exponent = max(__float_as_uint(largest) >> 23, 30u);
    const bool scaled = exponent < 255;  // not infinite
    factor = scaled ? __uint_as_float((127 + 14 + 127 - exponent) << 23) : 1.0f;
    inverse = scaled ? __uint_as_float((exponent - 14) << 23) : 1.0f;
  }
};

// Heads of more than kMaxCudaHeadDim elements, bfloat16 or float16 (hdim512.cu).
template <typename T>
void attention_hdim512(const Attention& args, cudaStream_t stream);

// An upper bound of the tokens that the rows of a sequence attend to together.
inline long long max_tokens_seen(const Attention& args) {
  if (args.window == 0) return args.max_kv_length;
  return std::min(args.max_kv_length, args.window + args.max_query_rows - 1);
}

// Calls function.operator()<kWindow>(); kWindow: whether rows may attend to fewer than all earlier
// tokens.
template <typename Function>
void with_window(const Attention& args, const Function& function) {
  const bool all = args.window >= args.max_kv_length && args.visible.data == nullptr;
  if (args.window == 0 || all) return function.template operator()<false>();
  function.template operator()<true>();
}

// Calls function.operator()<D>() with D the padded head length.
template <typename Function>
void with_padded_head(std::int64_t head_dim, const Function& function) {
  if (head_dim <= 64) return function.template operator()<64>();
  if (head_dim <= 128) return function.template operator()<128>();
  function.template operator()<256>();
}

// Sets a kernel's dynamic shared memory limit. `doing` is for the error message.
template <typename Kernel>
void allow_shared_memory(Kernel kernel, int bytes, const char* doing) {
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, kAttribute, bytes), doing);
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Exponents are in base 2: scores are multiplied by kLog2E in addition to `scale`.
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// 2^x, to 2 units in the last place; 0 where the result would be below 2^-126.
__device__ __forceinline__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The reference that is subtracted from scores before exponentiation. 0 if a row has no tokens, so
// that its weights are 0 instead of NaN.
__device__ __forceinline__ float reference_of(float row_max) {
  return row_max == -INFINITY ? 0.0f : row_max;
}

template <typename T>
__device__ __forceinline__ void AttentionParams<T>::add_sink(long long index, float& row_max,
                                                             float& sum) const {
  if (sinks == nullptr) return;
  const float sink = widen(sinks[index % heads]) * kLog2E;
  row_max = reference_of(row_max);
  // A sink may be so large that its weight would be infinite. So large, it leaves nothing of the
  // results: they keep their reference.
  const float excess = fmaxf(sink - row_max - 64.0f, 0.0f);
  row_max += excess;
  sum = sum * power_of_2(-excess) + power_of_2(sink - row_max);
}

// The log-sum-exp of weights that are relative to 2^row_max and add up to `sum`.
__device__ __forceinline__ float log_sum_exp(float row_max, float sum) {
  return sum == 0 ? -INFINITY : (row_max + log2f(sum)) * kLn2;
}

}  // namespace nvllm::kernels::cuda
