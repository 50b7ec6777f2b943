// Runs one attention task on the CPU: up to 64 packed rows, tile by tile of 64 tokens, with an
// online softmax in float32.
//
// Each tile packs its keys transposed and its values widened to float32, also those of E4m3,
// computes scores as a GEMM of the queries with the transposed keys, turns them into weights
// relative to the running maximum of the row, and adds a GEMM of the weights with the values to the
// rescaled output. Both GEMMs are the same register-blocked loop.
//
// This file is compiled twice, with the Lanes of AVX2 and, with NVLLM_AVX512 defined, of AVX-512.
// All of it is in an unnamed namespace for the reason that lanes_avx2.h gives.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(NVLLM_AVX512)
#include "kernels/common/cpu/lanes_avx512.h"
#else
#include "kernels/common/cpu/lanes_avx2.h"
#endif
// The instruction set's Lanes come first.
#include "kernels/attention/cpu/attention_kernels.h"
#include "kernels/common/cpu/e4m3_vector.h"

namespace nvllm::kernels::cpu {
namespace {

using Floats = Lanes::Floats;
using Ints = int __attribute__((vector_size(sizeof(Floats))));

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Lanes of all element types of a KV cache: those of the instruction set's Lanes, and E4m3.
template <typename T>
Lanes::Floats load_lanes(const T* from) {
  return Lanes::load(from);
}
// The first `count` elements, 1 to kCount; the rest are zeros.
template <typename T>
Lanes::Floats load_lanes_part(const T* from, std::int64_t count) {
  return Lanes::load_part(from, count);
}

template <>
inline Lanes::Floats load_lanes(const E4m3* from) {
#if defined(NVLLM_AVX512)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i halves = _mm256_set_m128i(e4m3_as_half(_mm_cvtepu8_epi16(_mm_srli_si128(bytes, 8))),
                                          e4m3_as_half(_mm_cvtepu8_epi16(bytes)));
  return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256));
#else
  return load8_e4m3(from);
#endif
}
template <>
inline Lanes::Floats load_lanes_part(const E4m3* from, std::int64_t count) {
  E4m3 padded[Lanes::kCount] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count));
  return load_lanes(static_cast<const E4m3*>(padded));
}

// 2^x for x <= 0, within 3 units of 2^-24; 0 below -126.5; NaN of NaN.
inline Floats power_of_2(Floats x) {
  // x = n + r with n whole: the sum with 1.5 * 2^23 has n in its lowest bits.
  const Floats lowest = Lanes::all(-127), shift = Lanes::all(0x1.8p23f);
  x = x < lowest ? lowest : x;
  const Floats shifted = x + shift;
  const Floats r = (x - (shifted - shift)) * Lanes::all(kLn2);
  Floats sum = Lanes::all(1.0f / 5040);
  for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = Lanes::multiply_add(sum, r, Lanes::all(factor));
  }
  // 0x1.8p23 has the bits 0x4b400000, which the shift moves out.
  const Ints exponent = ((Ints)shifted + 127) << 23;
  return sum * (Floats)exponent;
}

inline float max_of(Floats value) {
  float x[Lanes::kCount];
  Lanes::store(x, value);
  for (int half = Lanes::kCount / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] < x[i + half] ? x[i + half] : x[i];
  }
  return x[0];
}

// out = rescale * out + a b, with `depth` terms added in order. Without rescale: out = a b.
struct Factors {
  const float* a;
  std::int64_t a_stride;
  const float* b;
  std::int64_t b_stride;
  std::int64_t depth;
  float* out;
  std::int64_t out_stride;
  const float* rescale;  // per row; nullptr: none
};

constexpr int kBlockRows = 6;
constexpr int kBlockVectors = Lanes::kAccumulators / kBlockRows;

template <int kRows, int kVectors>
void multiply_block(const Factors& f, std::int64_t row, std::int64_t column) {
  constexpr int kLanes = Lanes::kCount;
  const float* a = f.a + row * f.a_stride;
  const float* b = f.b + column;
  float* out = f.out + row * f.out_stride + column;
  Floats sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = f.rescale == nullptr ? Lanes::zero()
                                       : Lanes::load(out + r * f.out_stride + v * kLanes) *
                                             Lanes::all(f.rescale[row + r]);
    }
  }
  for (std::int64_t k = 0; k < f.depth; ++k, b += f.b_stride) {
    Floats line[kVectors];
    for (int v = 0; v < kVectors; ++v) line[v] = Lanes::load(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = Lanes::all(a[r * f.a_stride + k]);
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Lanes::multiply_add(factor, line[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Lanes::store(out + r * f.out_stride + v * kLanes, sum[r][v]);
    }
  }
}

template <int kVectors>
void multiply_rows(const Factors& f, int rows, std::int64_t row, std::int64_t column) {
  switch (rows) {
    case 1: return multiply_block<1, kVectors>(f, row, column);
    case 2: return multiply_block<2, kVectors>(f, row, column);
    case 3: return multiply_block<3, kVectors>(f, row, column);
    case 4: return multiply_block<4, kVectors>(f, row, column);
    case 5: return multiply_block<5, kVectors>(f, row, column);
    default: return multiply_block<6, kVectors>(f, row, column);
  }
}

// Rows [begin, end) and columns [0, columns), which may run on to a whole vector.
inline void multiply(const Factors& f, std::int64_t begin, std::int64_t end, std::int64_t columns) {
  for (std::int64_t column = 0; column < columns;) {
    const std::int64_t vectors = std::min<std::int64_t>(
        (columns - column + Lanes::kCount - 1) / Lanes::kCount, kBlockVectors);
    for (std::int64_t row = begin; row < end;) {
      // Divides the rows into as few blocks as possible, of nearly equal height.
      const std::int64_t left = end - row;
      const int rows = static_cast<int>(left / ((left + kBlockRows - 1) / kBlockRows));
      switch (vectors) {
        case 1: multiply_rows<1>(f, rows, row, column); break;
        case 2: multiply_rows<2>(f, rows, row, column); break;
        case 3: multiply_rows<std::min(3, kBlockVectors)>(f, rows, row, column); break;
        default: multiply_rows<kBlockVectors>(f, rows, row, column); break;
      }
      row += rows;
    }
    column += vectors * Lanes::kCount;
  }
}

// Kv: the type of the keys and values, T or E4m3.
template <typename T, typename Kv>
class Tile {
 public:
  Tile(const Attention& args, const AttentionGroup& group, const AttentionTask& task,
       AttentionScratch& scratch)
      : args_(args),
        task_(task),
        group_(group),
        scratch_(scratch),
        head_dim_(args.q.shape[2]),
        padded_(padded_head(head_dim_)) {
    for (std::int64_t r = 0; r < task.rows; ++r) {
      visible_[r] = group.visible(task.first_row + r);
      first_seen_[r] = group.first_seen(task.first_row + r);
      if (task.list != nullptr) {
        visible_[r] =
            std::lower_bound(task.list, task.list + task.end_token, visible_[r]) - task.list;
      }
    }
  }

  void attend() {
    load_queries();
    clear();
    const std::int64_t end = std::min(task_.end_token, visible_[task_.rows - 1]);
    find(task_.first_token, end);
    for (std::int64_t first = task_.first_token; first < end; first += kTileTokens) {
      if (first > task_.first_token && first % kSegmentTokens == 0) end_segment(first), clear();
      std::copy_n(scratch_.next_offsets, kTileTokens, scratch_.offsets);
      find(first + kTileTokens, end);
      add_tokens(first, std::min<std::int64_t>(kTileTokens, end - first));
    }
    if (end > task_.first_token + kSegmentTokens) {
      end_segment(end);
      return store(scratch_.total_out, scratch_.total_max, scratch_.total_sum);
    }
    store(scratch_.out, scratch_.row_max, scratch_.sum);
  }

 private:
  static constexpr std::int64_t kLanes = Lanes::kCount;
  static constexpr bool kSame = std::is_same_v<T, Kv>;

  void clear() {
    std::fill_n(scratch_.out, task_.rows * padded_, 0.0f);
    std::fill_n(scratch_.row_max, kTileRows, kNone);
    std::fill_n(scratch_.sum, kTileRows, 0.0f);
  }

  // Adds the segment that ends at token `end` to the ones before, of rows that see some of it.
  void end_segment(std::int64_t end) {
    const std::int64_t first = (end - 1) / kSegmentTokens * kSegmentTokens;
    if (first == task_.first_token) {
      std::copy_n(scratch_.out, task_.rows * padded_, scratch_.total_out);
      std::copy_n(scratch_.row_max, task_.rows, scratch_.total_max);
      std::copy_n(scratch_.sum, task_.rows, scratch_.total_sum);
      return;
    }
    for (std::int64_t row = 0; row < task_.rows; ++row) {
      if (visible_[row] <= first) continue;
      const CombineWeights weights(scratch_.total_max[row], scratch_.row_max[row]);
      const Floats before = Lanes::all(weights.before), next = Lanes::all(weights.next);
      for (std::int64_t i = row * padded_; i < (row + 1) * padded_; i += kLanes) {
        Lanes::store(scratch_.total_out + i,
                     Lanes::multiply_add(next, Lanes::load(scratch_.out + i),
                                         Lanes::load(scratch_.total_out + i) * before));
      }
      scratch_.total_sum[row] =
          std::fma(weights.next, scratch_.sum[row], weights.before * scratch_.total_sum[row]);
      scratch_.total_max[row] = weights.row_max;
    }
  }

  void load_queries() {
    const float of_keys = kSame ? 1.0f : key_scale(args_.kv_scales, group_.kv_head);
    const Floats scale = Lanes::all(args_.scale * kLog2E * of_keys);
    for (std::int64_t r = 0; r < task_.rows; ++r) {
      const T* from = args_.q.as<T>() + group_.in_q(args_, task_.first_row + r);
      widen(from, scratch_.q + r * padded_, scale);
    }
  }

  // Loads a head and pads it with zeros.
  template <typename From>
  void widen(const From* from, float* to, Floats factor) const {
    std::int64_t i = 0;
    for (; i + kLanes <= head_dim_; i += kLanes) {
      Lanes::store(to + i, load_lanes(from + i) * factor);
    }
    if (i < head_dim_) {
      Lanes::store(to + i, load_lanes_part(from + i, head_dim_ - i) * factor);
      i += kLanes;
    }
    for (; i < padded_; i += kLanes) Lanes::store(to + i, Lanes::zero());
  }

  void add_tokens(std::int64_t first, std::int64_t count) {
    if (first + count <= first_seen_[0]) return;  // before the windows of all rows
    pack_keys(count);
    pack_values(count);
    multiply({.a = scratch_.q,
              .a_stride = padded_,
              .b = scratch_.keys,
              .b_stride = kTileTokens,
              .depth = head_dim_,
              .out = scratch_.weights,
              .out_stride = kTileTokens,
              .rescale = nullptr},
             0, task_.rows, count);
    exponentiate(first, count);
    // Rows that see the same tokens go together, so no row meets a token that it does not see.
    for (std::int64_t row = 0; row < task_.rows;) {
      const std::int64_t seen = seen_of(row, first, count), unseen = unseen_of(row, first, count);
      std::int64_t end = row + 1;
      while (end < task_.rows && seen_of(end, first, count) == seen &&
             unseen_of(end, first, count) == unseen) {
        ++end;
      }
      multiply({.a = scratch_.weights + unseen,
                .a_stride = kTileTokens,
                .b = scratch_.values + unseen * padded_,
                .b_stride = padded_,
                .depth = std::max<std::int64_t>(seen - unseen, 0),
                .out = scratch_.out,
                .out_stride = padded_,
                .rescale = scratch_.rescale},
               row, end, padded_);
      row = end;
    }
  }

  // How many of the tile's tokens a row sees.
  std::int64_t seen_of(std::int64_t row, std::int64_t first, std::int64_t count) const {
    return std::clamp<std::int64_t>(visible_[row] - first, 0, count);
  }

  // How many of its first tokens are before the row's window.
  std::int64_t unseen_of(std::int64_t row, std::int64_t first, std::int64_t count) const {
    return std::clamp<std::int64_t>(first_seen_[row] - first, 0, count);
  }

  // Finds the offsets of the next tile's tokens. Beyond `end` and in the last tile of a task they
  // stay unchanged.
  void find(std::int64_t first, std::int64_t end) {
    const KvView& kv = args_.kv;
    const auto& stride = kv.keys.stride;
    const std::int32_t* table = kv.block_table.as<std::int32_t>();
    if (table != nullptr) table += group_.sequence * kv.block_table.shape[1];
    const std::int64_t count = std::min<std::int64_t>(kTileTokens, end - first);
    std::int64_t block = first / kv.block_size(), inside = first % kv.block_size();
    for (std::int64_t t = 0; t < count; ++t) {
      if (const std::int32_t* token = task_.list; token != nullptr) {
        token += first + t;
        if (t == 0 || token[0] != token[-1] + 1) {
          block = *token / kv.block_size();
          inside = *token % kv.block_size();
        }
      }
      const std::int64_t id = table != nullptr ? table[block] : group_.sequence;
      scratch_.next_offsets[t] = id * stride[0] + inside * stride[1] + group_.kv_head * stride[2];
      if (++inside == kv.block_size()) inside = 0, ++block;
    }
  }

  // Prefetches a head of the next tile while this one is read: the gaps between the heads of
  // neighbouring tokens hide the pattern from the hardware prefetcher.
  void fetch(const Kv* head) const {
    constexpr std::int64_t kLine = 64 / sizeof(Kv);
    for (std::int64_t i = 0; i < head_dim_; i += kLine) _mm_prefetch(head + i, _MM_HINT_T0);
  }

  const Kv* key(std::int64_t t) const { return args_.kv.keys.as<Kv>() + scratch_.offsets[t]; }

  // Transposes the keys. Zeros fill the last vector of tokens.
  void pack_keys(std::int64_t count) {
    for (std::int64_t t = 0; t < count; t += kLanes) {
      const std::int64_t tokens = std::min(kLanes, count - t);
      for (std::int64_t j = t; j < t + tokens; ++j) {
        fetch(args_.kv.keys.as<Kv>() + scratch_.next_offsets[j]);
      }
      if constexpr (std::is_same_v<Kv, Bf16>) {
        for (std::int64_t i = 0; i < head_dim_; i += 2 * kLanes) pack_pairs(t, tokens, i);
      } else {
        for (std::int64_t i = 0; i < head_dim_; i += kLanes) pack_floats(t, tokens, i);
      }
    }
  }

  void pack_values(std::int64_t count) {
    const Kv* values = args_.kv.values.as<Kv>();
    for (std::int64_t t = 0; t < count; ++t) {
      fetch(values + scratch_.next_offsets[t]);
      widen(values + scratch_.offsets[t], scratch_.values + t * padded_, Lanes::all(1));
    }
  }

  void pack_floats(std::int64_t t, std::int64_t tokens, std::int64_t i) {
    const std::int64_t elements = std::min(kLanes, head_dim_ - i);
    Floats x[kLanes];
    for (std::int64_t j = 0; j < kLanes; ++j) {
      x[j] = j >= tokens          ? Lanes::zero()
             : elements == kLanes ? load_lanes(key(t + j) + i)
                                  : load_lanes_part(key(t + j) + i, elements);
    }
    Lanes::transpose(x);
    float* to = scratch_.keys + i * kTileTokens + t;
    for (std::int64_t j = 0; j < elements; ++j) Lanes::store(to + j * kTileTokens, x[j]);
  }

  // Transposes two elements at a time, which halves the work.
  void pack_pairs(std::int64_t t, std::int64_t tokens, std::int64_t i) {
    const std::int64_t elements = std::min(2 * kLanes, head_dim_ - i);
    Floats x[kLanes];
    for (std::int64_t j = 0; j < kLanes; ++j) {
      x[j] = j >= tokens              ? Lanes::zero()
             : elements == 2 * kLanes ? Lanes::load_pairs(key(t + j) + i)
                                      : Lanes::load_pairs_part(key(t + j) + i, elements);
    }
    Lanes::transpose(x);
    float* to = scratch_.keys + i * kTileTokens + t;
    for (std::int64_t j = 0; j < elements; j += 2) {
      Lanes::store(to + j * kTileTokens, Lanes::first_of(x[j / 2]));
      Lanes::store(to + (j + 1) * kTileTokens, Lanes::second_of(x[j / 2]));
    }
  }

  // Turns scores into weights relative to the row's new maximum; `rescale` is the factor for what
  // was added before.
  void exponentiate(std::int64_t first, std::int64_t count) {
    float before[kTileRows];
    std::copy_n(scratch_.row_max, kTileRows, before);
    for (std::int64_t row = 0; row < task_.rows; ++row) {
      const std::int64_t seen = seen_of(row, first, count);
      float* scores = scratch_.weights + row * kTileTokens;
      for (std::int64_t t = seen; t % kLanes != 0; ++t) scores[t] = kNone;
      std::fill_n(scores, unseen_of(row, first, count), kNone);
      Floats row_max = Lanes::all(scratch_.row_max[row]);
      for (std::int64_t t = 0; t < seen; t += kLanes) {
        const Floats score = Lanes::load(scores + t);
        row_max = row_max < score ? score : row_max;
      }
      scratch_.row_max[row] = max_of(row_max);
    }
    // Where there is no score yet, weights are relative to 1, so that they are 0 and not NaN.
    const Floats none = Lanes::all(kNone);
    for (std::int64_t row = 0; row < task_.rows; row += kLanes) {
      const Floats row_max = Lanes::load(scratch_.row_max + row);
      const Floats reference = row_max == none ? Lanes::zero() : row_max;
      Lanes::store(scratch_.rescale + row, power_of_2(Lanes::load(before + row) - reference));
    }
    for (std::int64_t row = 0; row < task_.rows; ++row) {
      const std::int64_t seen = seen_of(row, first, count);
      float* weights = scratch_.weights + row * kTileTokens;
      const float row_max = scratch_.row_max[row];
      const Floats reference = Lanes::all(row_max == kNone ? 0.0f : row_max);
      Floats sum = Lanes::zero();
      for (std::int64_t t = 0; t < seen; t += kLanes) {
        const Floats weight = power_of_2(Lanes::load(weights + t) - reference);
        Lanes::store(weights + t, weight);
        sum = sum + weight;
      }
      scratch_.sum[row] = scratch_.sum[row] * scratch_.rescale[row] + Lanes::sum(sum);
    }
  }

  // What the weighted values are multiplied by.
  float out_scale() const { return value_scale(args_.kv_scales, group_.kv_head); }

  void store(const float* sums, const float* row_max, const float* sum) {
    if (task_.partial != nullptr) {
      const PartialRows to = partial_rows(task_.partial, task_.rows, head_dim_);
      std::copy_n(sums, task_.rows * padded_, to.out);
      std::copy_n(row_max, task_.rows, to.row_max);
      std::copy_n(sum, task_.rows, to.sum);
      return;
    }
    if (args_.out.dtype == DType::f32) return store_result<float>(sums, row_max, sum);
    store_result<T>(sums, row_max, sum);
  }

  template <typename Out>
  void store_result(const float* sums, const float* row_max, const float* sum) {
    for (std::int64_t r = 0; r < task_.rows; ++r) {
      const RowEnd row_end(row_max[r], sum[r], kSame ? 1.0f : out_scale(),
                           sink_of(args_, group_.head(task_.first_row + r)));
      const Floats factor = Lanes::all(row_end.factor);
      Out* out = args_.out.as<Out>() + group_.in_out(args_, task_.first_row + r);
      for (std::int64_t i = 0; i < head_dim_; i += kLanes) {
        Lanes::store_part(out + i, Lanes::load(sums + r * padded_ + i) * factor,
                          std::min(kLanes, head_dim_ - i));
      }
      if (args_.lse.data != nullptr) {
        args_.lse.as<float>()[group_.in_lse(args_, task_.first_row + r)] = row_end.lse;
      }
    }
  }

  const Attention& args_;
  const AttentionTask& task_;
  const AttentionGroup& group_;
  AttentionScratch& scratch_;
  const std::int64_t head_dim_, padded_;
  std::int64_t visible_[kTileRows];  // counted in entries of the list, if there is one
  std::int64_t first_seen_[kTileRows];
};

template <typename T, typename Kv>
void attend_task(const Attention& args, const AttentionGroup& group, const AttentionTask& task,
                 AttentionScratch& scratch) {
  Tile<T, Kv>(args, group, task, scratch).attend();
}

template <typename T>
AttendTask attend_task_of(bool of_e4m3) {
  return of_e4m3 ? attend_task<T, E4m3> : attend_task<T, T>;
}

}  // namespace

#if defined(NVLLM_AVX512)
AttendTask attend_task_avx512(DType type, DType kv_type) {
#else
AttendTask attend_task_avx2(DType type, DType kv_type) {
#endif
  const bool of_e4m3 = kv_type == DType::u8;
  switch (type) {
    case DType::f32: return attend_task_of<float>(of_e4m3);
    case DType::bf16: return attend_task_of<Bf16>(of_e4m3);
    default: return attend_task_of<F16>(of_e4m3);
  }
}

}  // namespace nvllm::kernels::cpu
