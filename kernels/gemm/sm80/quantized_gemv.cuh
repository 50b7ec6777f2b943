// GEMV with a quantized weight: up to 16 rows of bfloat16 or float16, bound by reading the weight.
//
// Each multiprocessor runs one block, which computes its share of the outputs for all rows. kSplits
// of its warps form a group, which splits the inputs. A group computes up to 16 outputs in a pass,
// and continues with its next outputs without a pause: when a warp has multiplied one slice, a
// block of 64 bytes of each output's weights, it loads the slice kSlices further on into the same
// registers, even if it belongs to the next pass. The first weights are loaded before the kernel
// waits for the previous one in the stream (see GemmWeight). The sums of a group's warps are added
// in shared memory in ascending order, so results are reproducible.
//
// All of x is in shared memory (staged_rows.cuh) if it fits, otherwise each warp has a ring of
// kSlices slices of it. The weight is operand A, so that 16 outputs are multiplied at once: a
// lane's 16 bytes of two outputs' weights become, in registers, its part of operand A for (inputs
// per slice) / 16 mma instructions. The rows of x are the columns of operand B, loaded by ldmatrix.
//
// Values are not scaled: scales are applied to sums over a `unit` of inputs, all of one group, and
// offsets to sums of x, which are factors of x's slices, or come from an mma with ones.
#pragma once

#include <type_traits>

#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/gemv_plan.cuh"
#include "kernels/gemm/sm80/staged_rows.cuh"

namespace nvllm::kernels::cuda {

// Groups have 2^bits inputs.
constexpr int group_bits_of(std::int64_t group) {
  int bits = 4;
  while (1 << bits < group) ++bits;
  return bits;
}

// The weight of a GEMM: see kernels/gemm/quantized_weight.h.
struct QuantizedOperand {
  const char* values;
  const unsigned* scales;  // float32, or scale and offset in float16
  int row_bytes, row_groups;
  int group_bits;  // see group_bits_of()

  explicit QuantizedOperand(const GemmWeight& weight)
      : values(weight.values.as<const char>()),
        scales(weight.quantized.scales.as<const unsigned>()),
        row_bytes(static_cast<int>(weight.quantized_shape().row_bytes())),
        row_groups(static_cast<int>(weight.quantized_shape().groups())),
        group_bits(group_bits_of(weight.quantized.group)) {}
};

// Where the kernel reads x: a ring of each warp, all of it in shared memory, or the same with its
// norm applied.
enum class Staging : unsigned char { ring, all, normed };

// Whether slices of x have factors (staged_rows.cuh), where supported. Computing them takes longer
// than they save if little is multiplied; with a norm, x waits in shared memory anyway, and gated
// GEMMs have the most weights.
__host__ __device__ constexpr bool takes_factors(bool normed, bool gated) {
  return normed || gated;
}

// Launch parameters.
struct QuantizedGemvGrid {
  int share;   // outputs per block; gate rows, if the GEMM is gated
  int pass;    // outputs per pass: at most 16, or 8 gate rows
  bool early;  // the next kernel may launch early: see launch.cuh
};

// --- weights -------------------------------------------------------------------------------------

// A pass: `count` outputs from one of the block's on.
struct Pass {
  int first, outputs;
};

// Loads of an output's weights and of a scale, which leave the registers unchanged if not `inside`.
// Weights are read once, bypassing the L1, in which the scales of a lane's neighbours stay.
__device__ __forceinline__ void load_weights(unsigned (&words)[4], const char* from, bool inside) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
      : "l"(from), "r"(static_cast<int>(inside)));
}
__device__ __forceinline__ void load_scale(unsigned& scale, const unsigned* from, bool inside) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u32 %0, [%1];\n}"
               : "+r"(scale)
               : "l"(from), "r"(static_cast<int>(inside)));
}

// A lane's part of its warp's weight slices: of outputs g and g + 8 of a pass, or of gate row g and
// its up row, for lanes 4 g to 4 g + 3.
template <WeightFormat kFormat, int kUnit, bool kGated, int kSplits>
struct PassWeights {
  static constexpr int kInputs = kBlockInputs<kFormat>, kUnits = kInputs / kUnit;
  static constexpr int kStep = kSplits * kGemvSliceBytes;  // from a warp's slice to its next one
  static_assert(kSplits * kInputs % 128 == 0, "a step is whole groups");

  // One slice.
  struct Loaded {
    unsigned words[2][4];
    unsigned scales[2][kUnits];
  };

  int split, output, row_bytes, row_groups, step_groups, unit_group[kUnits];
  // The addresses of the next slices.
  const char* values[2];
  const unsigned* scales[2];

  __device__ __forceinline__ PassWeights(const QuantizedOperand& q, int first_output,
                                         int all_outputs)
      : split(threadIdx.x / 32 % kSplits),
        output(threadIdx.x % 32 / 4),
        row_bytes(q.row_bytes),
        row_groups(q.row_groups) {
    // For formats whose only group size is 128 this is a constant.
    const int group_bits = kUnit == 128 || kFormat == WeightFormat::fp8 ? 7 : q.group_bits;
    step_groups = (kSplits * kInputs) >> group_bits;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
      unit_group[unit] = (split * kInputs + unit * kUnit) >> group_bits;
    const int apart = kGated ? all_outputs : kTileOutputs;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = first_output + output + half * apart;
      values[half] = q.values + row * row_bytes + split * kGemvSliceBytes + threadIdx.x % 4 * 16;
      scales[half] = q.scales + row * row_groups + unit_group[0];
    }
  }

  // Advances by this many outputs and slices.
  __device__ __forceinline__ void advance(int outputs, int slices) {
    const long long bytes = static_cast<long long>(outputs) * row_bytes + slices * kStep;
    const long long groups = static_cast<long long>(outputs) * row_groups + slices * step_groups;
#pragma unroll
    for (int half = 0; half < 2; ++half) values[half] += bytes, scales[half] += groups;
  }

  // Loads the slice i steps ahead, in a pass of `outputs` outputs.
  __device__ __forceinline__ void load(int outputs, int i, Loaded& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = (kGated ? output : output + half * kTileOutputs) < outputs;
      load_weights(to.words[half], values[half] + i * kStep, inside);
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const int from = i * step_groups + (unit > 0 ? unit_group[unit] - unit_group[0] : 0);
        load_scale(to.scales[half][unit], scales[half] + from, inside);
      }
    }
  }
};

// --- sums ----------------------------------------------------------------------------------------

// Words between rows of sums: adjacent lanes write to different banks.
inline constexpr int kPassOutputs = 16, kSumStride = kPassOutputs + 4;

// A warp's sums of a pass: of outputs g and g + 8 in lanes 4 g to 4 g + 3, and of two rows, 2 t and
// 2 t + 1, or these and 8 more.
template <typename T, WeightFormat kFormat, int kUnit, int kHalves, bool kFactors = false>
struct PassSums {
  using Values = QuantizedValues<kFormat, T>;
  static constexpr int kInputs = kBlockInputs<kFormat>, kSteps = kInputs / 16;  // of a slice
  static constexpr int kUnits = kInputs / kUnit, kUnitSteps = kUnit / 16;
  static constexpr bool kOffsets = !has_float_values(kFormat);
  // Weights and x are float16.
  static constexpr bool kHalfFloats = kFactors && kFormat == WeightFormat::fp8;
  using Element = std::conditional_t<kHalfFloats, F16, T>;

  float d[kHalves][4] = {};

  // Adds a slice. of_rows: its factors of x (staged_rows.cuh), if kFactors.
  template <typename Loaded>
  __device__ __forceinline__ void add(const Loaded& w, const RowsFragments<kFormat, T, kHalves>& x,
                                      const float2 (&of_rows)[kHalves]) {
    unsigned a[kSteps][2][2];  // by step, word of the step, output
#pragma unroll
    for (int output = 0; output < 2; ++output) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        unsigned pairs[2 * Values::kSteps];
        if constexpr (kHalfFloats) {
          widen_e4m3_to_half(w.words[output][word], pairs[0], pairs[1]);
        } else {
          Values::unpack(w.words[output][word], pairs);
        }
#pragma unroll
        for (int j = 0; j < 2 * Values::kSteps; ++j)
          a[word * Values::kSteps + j / 2][j % 2][output] = pairs[j];
      }
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const GroupScale scale[2] = {group_scale<kFormat, T>(w.scales[0][unit]),
                                   group_scale<kFormat, T>(w.scales[1][unit])};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        // With few rows there are two chains of sums, so that mma instructions do not depend on
        // each other.
        constexpr int kChains = kFactors && kHalves == 1 ? 2 : 1;
        float part[kChains][4] = {}, x_sums[4] = {};
#pragma unroll
        for (int step = unit * kUnitSteps; step < (unit + 1) * kUnitSteps; ++step) {
          const auto& b = x.b[half][step];
          multiply_add<Element>(part[step % kChains], a[step][0][0], a[step][0][1], a[step][1][0],
                                a[step][1][1], b[0], b[1]);
          if constexpr (kOffsets && !kFactors)
            multiply_add<T>(x_sums, kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>, b[0], b[1]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& sum = d[half][j];
          const float values = kChains == 1 ? part[0][j] : part[0][j] + part[kChains - 1][j];
          const float of_row = j % 2 == 0 ? of_rows[half].x : of_rows[half].y;
          const float factor = kHalfFloats ? scale[j / 2].scale * of_row : scale[j / 2].scale;
          sum = fmaf(factor, values, sum);
          if constexpr (kOffsets)
            sum = fmaf(scale[j / 2].offset, kFactors ? of_row : x_sums[j % 2], sum);
        }
      }
    }
  }

  template <typename Loaded>
  __device__ __forceinline__ void add(const Loaded& w,
                                      const RowsFragments<kFormat, T, kHalves>& x) {
    static_assert(!kFactors);
    add(w, x, {});
  }

  // Stores the sums in the warp's part of shared memory.
  __device__ __forceinline__ void put(float (&sums)[kHalves * 8][kSumStride], int rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = half * 8 + lane % 4 * 2 + j % 2;
        if (row < rows)
          sums[row][j / 2 * kTileOutputs + lane / 4] =
              d[half][j] * (kHalfFloats ? 1.0f : kSumUnit<kFormat, T>);
      }
    }
  }
};

// Ends passes, called by the threads of a group: adds up the sums of its warps, and stores results.
template <typename T, bool kGated, int kSplits>
struct PassEnd {
  static constexpr int kColumns = kGated ? kPassOutputs / 2 : kPassOutputs;

  int first_output, thread = threadIdx.x % (kSplits * 32);
  float residual = 0;  // of this thread's first element of the next pass

  // The residual loads of a pass overlap its multiplication.
  __device__ __forceinline__ void begin(const GemmParams<T>& p, const Pass& pass) {
    const int row = thread / kColumns, column = thread % kColumns;
    if (!kGated && row < p.rows && column < pass.outputs)
      residual = residual_of(p, row, first_output + pass.first + column);
  }

  template <int kRows>
  __device__ __forceinline__ void store(const GemmParams<T>& p, const Pass& pass,
                                        const float (*sums)[kRows][kSumStride]) const {
    const auto sum_of = [&](int row, int column) {
      float sum = 0;
#pragma unroll
      for (int split = 0; split < kSplits; ++split) sum += sums[split][row][column];
      return sum;
    };
#pragma unroll 1
    for (int i = thread; i < p.rows * kColumns; i += kSplits * 32) {
      const int row = i / kColumns, column = i % kColumns;
      if (column >= pass.outputs) continue;
      const float sum = sum_of(row, column);
      const int output = first_output + pass.first + column;
      if constexpr (kGated) {
        store_gated(p, row, output, sum, sum_of(row, kTileOutputs + column));
      } else {
        store_output(p, row, output, sum, i == thread ? residual : residual_of(p, row, output));
      }
    }
  }
};

// --- the kernel ----------------------------------------------------------------------------------

template <int kThreads>
__device__ __forceinline__ void wait_for_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kThreads) : "memory");
}

// kUnit: inputs with one scale, at least 16. Unless kStaging is ring, p.inputs are whole slices.
// kMaxRows: 8 or 16. kGated: p.outputs counts gate rows; there are as many up rows.
template <typename T, WeightFormat kFormat, int kUnit, Staging kStaging, bool kGated, int kMaxRows,
          int kSplits, int kSlices, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1)
    quantized_gemv_kernel(const GemmParams<T> p, const QuantizedOperand q,
                          const QuantizedGemvGrid grid) {
  using Weights = PassWeights<kFormat, kUnit, kGated, kSplits>;
  constexpr int kGroups = kWarps / kSplits, kHalves = kMaxRows / 8;
  constexpr int kInputs = kBlockInputs<kFormat>;
  constexpr bool kRing = kStaging == Staging::ring;
  constexpr bool kFactors = !kRing && takes_factors(kStaging == Staging::normed, kGated) &&
                            kHasFactors<T, kFormat, kUnit>;
  __shared__ float sums[2][kWarps][kHalves * 8][kSumStride];
  extern __shared__ __align__(128) char shared[];

  const int warp = threadIdx.x / 32, group = warp / kSplits;
  const int first_output = blockIdx.x * grid.share;
  const int outputs = min(grid.share, p.outputs - first_output);
  Weights weights(q, first_output, p.outputs);
  const int slices = (p.inputs + kInputs - 1) / kInputs;
  const int count = (slices - weights.split + kSplits - 1) / kSplits;
  const auto pass_at = [&](int n) {
    const int first = (n * kGroups + group) * grid.pass;
    return Pass{first, min(grid.pass, outputs - first)};
  };

  // Constants are loaded before the previous kernel has ended.
  Pass pass = pass_at(0);
  typename Weights::Loaded w[kSlices] = {};
  weights.advance(pass.first, 0);
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (i < count) weights.load(pass.outputs, i, w[i]);
  }
  const StagedRows<T, kFormat, kStaging == Staging::normed, kFactors, kMaxRows> staged(shared, p);
  if constexpr (!kRing) staged.begin(p);
  pdl_begin(grid.early);

  PassEnd<T, kGated, kSplits> end{first_output};
  end.begin(p, pass);
  const RingRows<T, kInputs> rows(p);
  const int stage_bytes = p.rows * kSliceRowBytes<kInputs>;
  const unsigned ring = address_of(shared) + warp * kSlices * stage_bytes;
  if constexpr (kRing) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (i < count) rows.copy(i * kSplits + weights.split, ring + i * stage_bytes);
      commit_copies();
    }
  } else {
    staged.finish(p);
  }

#pragma unroll 1
  for (int n = 0; pass.outputs > 0; ++n) {
    const Pass next = pass_at(n + 1);
    PassSums<T, kFormat, kUnit, kHalves, kFactors> d;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kSlices) {
      // The registers next receive later slices of this pass, or the first ones of the next.
      const bool last = begin + kSlices >= count;
      const int coming_outputs = last ? next.outputs : pass.outputs;
      const int coming_slice = last ? 0 : begin + kSlices;
      const int coming = last ? (next.outputs > 0 ? count : 0) : count - coming_slice;
      weights.advance(last ? next.first - pass.first : 0, coming_slice - begin);
      const unsigned x_from = kRing ? ring : staged.slice(begin * kSplits + weights.split);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        if (begin + i < count) {
          RowsFragments<kFormat, T, kHalves> x;
          float2 of_rows[kHalves] = {};
          if constexpr (kFactors) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half)
              of_rows[half] = staged.factors_of((begin + i) * kSplits + weights.split, half);
          }
          if constexpr (kRing) {
            wait_for_copies<kSlices - 1>();
            __syncwarp();
            x.load(x_from + i * stage_bytes, kSliceRowBytes<kInputs>, p.rows);
            x.arrange();
            __syncwarp();
          } else {
            x.load(x_from + i * (kSplits * kInputs * 2), staged.row_bytes, p.rows);
          }
          d.add(w[i], x, of_rows);
        }
        if (i < coming) {
          weights.load(coming_outputs, i, w[i]);
          if constexpr (kRing)
            rows.copy((coming_slice + i) * kSplits + weights.split, ring + i * stage_bytes);
        }
        if constexpr (kRing) commit_copies();
      }
    }
    d.put(sums[n % 2][warp], p.rows);
    wait_for_group<kSplits * 32>(group);
    end.store(p, pass, &sums[n % 2][group * kSplits]);
    pass = next;
    end.begin(p, pass);
  }
}

}  // namespace nvllm::kernels::cuda
