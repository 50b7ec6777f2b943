// GEMMs of bfloat16 in AMX tiles: a GEMM of tiles takes 16 outputs, 16 rows and 32 inputs. A row
// has the same bits among any number of rows: tiles take inputs in order, and so do the vectors
// that compute one row or two.
#include <cstddef>
#include <utility>

#include "kernels/gemm/cpu/formats_bf16.h"

namespace nvllm::kernels::cpu {
namespace {

// The tile configuration of each thread that uses tiles: all eight have 16 rows of 64 bytes.
class TileConfiguration {
  struct alignas(64) Layout {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Layout) == 64);

 public:
  TileConfiguration() {
    // Constant memory, because the compiler takes the instruction to read no more than 8 bytes of
    // it.
    static constexpr Layout layout;
    _tile_loadconfig(&layout);
  }
  ~TileConfiguration() { _tile_release(); }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

constexpr int kTile = 16;        // rows of a tile, and dwords of a row
constexpr int kTileInputs = 32;  // of bfloat16

// Subnormal operands and results count as zero, as they do in tiles. Operands are loaded, and
// results stored, while this lives.
class FlushSubnormals {
 public:
  FlushSubnormals() {
    asm volatile("stmxcsr %0" : "=m"(before_) : : "memory");
    set(before_ | 0x8040);
  }
  ~FlushSubnormals() { set(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static void set(unsigned control) { asm volatile("ldmxcsr %0" : : "m"(control) : "memory"); }
  unsigned before_;
};

// So few rows that tiles would be mostly empty, and read memory slower: vectors that give the bits
// of tiles. A tile adds to its sum those of steps of 32 inputs, one after the other; that of a step
// is the sum of two chains of multiply-adds from zero, of the first and of the second inputs of
// pairs.
//
// Here a block of 16 steps of an output is transposed, so that lanes are steps and the chains go
// from vector to vector. Their sums wait until those of 16 outputs can be transposed in turn, and
// are added step by step. So rows of weights are read one after the other, as one stream. Steps
// after the last block that is whole, or half at least, are transposed with 16 outputs as lanes.
//
// Rows of x are prepared as floats: for each block the first inputs of all pairs, [pair][step], and
// the second ones.
struct DotInTileOrder {
  static constexpr int kMaxRows = 2;
  static constexpr int kSteps = 16;  // of a block
  static constexpr int kBlockInputs = kSteps * kTileInputs, kBlockFloats = kBlockInputs;
  static constexpr int kOutputs = 128;  // between two changes of how subnormals count
  // A transposition waits for all of its loads, and while it waits few others begin: lines must be
  // in the first level before they are loaded.
  static constexpr int kNear = 3 * kBlockInputs / 2, kFar = 4 * kBlockInputs;

  static void fetch(const Bf16* from) {
    _mm_prefetch(from + kNear, _MM_HINT_T0);
    _mm_prefetch(from + kFar, _MM_HINT_T1);
  }

  static std::int64_t row_floats(std::int64_t inputs) {
    return divide_up(inputs, kBlockInputs) * kBlockFloats;
  }

  // run(0) to run(15), written out: a loop would keep in memory what it indexes.
  template <typename Run>
  [[gnu::always_inline]] static void for_16(Run&& run) {
    [&]<int... i>(std::integer_sequence<int, i...>) {
      (run(i), ...);
    }
    (std::make_integer_sequence<int, 16>());
  }

  static void prepare(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                      std::int64_t end, float* prepared) {
    const Bf16* from = static_cast<const Bf16*>(gemm.x) + first_row * gemm.x_stride;
    const __m512i pairs = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_slli_epi32(pairs, 4);
    for (int row = 0; row < rows; ++row, from += gemm.x_stride) {
      float* const to = prepared + row * row_floats(gemm.inputs);
      for (std::int64_t i = begin; i < end; i += kTileInputs) {
        const __m512 values = load_dwords<BlocksOfBf16>(from + i, end - i);
        float* const at = to + i / kBlockInputs * kBlockFloats + i % kBlockInputs / kTileInputs;
        _mm512_i32scatter_ps(at, places, Lanes::first_of(values), sizeof(float));
        _mm512_i32scatter_ps(at + kTile * kSteps, places, Lanes::second_of(values), sizeof(float));
      }
    }
  }

  static void run(const GemmTask& gemm, std::int64_t first_row, int rows, const float* prepared,
                  std::int64_t begin, std::int64_t end) {
    alignas(64) float sums[kMaxRows * kOutputs];
    for (std::int64_t o = begin; o < end; o += kOutputs) {
      const std::int64_t count = smaller(end - o, kOutputs);
      const auto of_rows = rows == 1 ? multiply<1> : multiply<2>;
      of_rows(gemm, prepared, o, count, sums);
      for (int r = 0; r < rows; ++r) {
        for (std::int64_t lane = 0; lane < count; lane += kTile) {
          Lanes::Floats values = Lanes::load(sums + r * kOutputs + lane);
          finish<Bf16>(gemm, first_row + r, 1, o + lane, smaller(count - lane, kTile), &values);
        }
      }
    }
  }

 private:
  // Sums [row][output] of `count` outputs from `output` on.
  template <int kR>
  static void multiply(const GemmTask& gemm, const float* x, std::int64_t output,
                       std::int64_t count, float* sums) {
    const FlushSubnormals flush;
    for (std::int64_t o = 0; o < count; o += kTile) {
      const Bf16* weight = static_cast<const Bf16*>(gemm.weight) + (output + o) * gemm.inputs;
      some_outputs<kR>(weight, gemm.inputs, smaller(count - o, kTile), x, sums + o);
    }
  }

  // kTile outputs at most.
  template <int kR>
  static void some_outputs(const Bf16* weight, std::int64_t inputs, std::int64_t outputs,
                           const float* x, float* sums) {
    // The number of blocks whose sums may occupy the first-level cache at a time.
    constexpr std::int64_t kChunkBlocks = 32 / kR;
    alignas(64) float steps[kChunkBlocks][kR][kTile][kSteps];
    const std::int64_t x_stride = row_floats(inputs);
    // Where the blocks end. The last one may lack half of its steps.
    const std::int64_t whole =
        smaller(inputs, (inputs + kBlockInputs / 2) / kBlockInputs * kBlockInputs);
    Lanes::Floats sum[kR];
    for (Lanes::Floats& of_row : sum) of_row = Lanes::zero();
    for (std::int64_t begin = 0; begin < whole; begin += kChunkBlocks * kBlockInputs) {
      const std::int64_t end = smaller(whole, begin + kChunkBlocks * kBlockInputs);
      for (std::int64_t o = 0; o < outputs; ++o) {
        const Bf16* from = weight + o * inputs;
        for (std::int64_t i = begin; i < end; i += kBlockInputs)
          multiply_block<kR>(from + i, end - i, x + i, x_stride,
                             steps[(i - begin) / kBlockInputs][0][o]);
        if (end < whole) continue;
        for (std::int64_t i = whole; i < inputs; i += kTileInputs) fetch(from + i);
      }
      for (std::int64_t i = begin; i < end; i += kBlockInputs) {
        const std::int64_t count = smaller(kSteps, divide_up(end - i, kTileInputs));
        for (int r = 0; r < kR; ++r) add_steps(steps[(i - begin) / kBlockInputs][r], count, sum[r]);
      }
    }
    for (std::int64_t i = whole; i < inputs; i += kTileInputs) {
      add_step<kR>(weight + i, inputs, inputs - i, outputs, x + whole + (i - whole) / kTileInputs,
                   x_stride, sum);
    }
    for (int r = 0; r < kR; ++r) Lanes::store(sums + r * kOutputs, sum[r]);
  }

  // Writes the sums of a block's steps to sums[row * kTile * kSteps + step]. `inputs` inputs are
  // left; the sums of steps after them are arbitrary.
  template <int kR>
  [[gnu::always_inline]] static void multiply_block(const Bf16* weight, std::int64_t inputs,
                                                    const float* x, std::int64_t x_stride,
                                                    float* sums) {
    Lanes::Floats pairs[kTile], of_steps[kR];
    if (inputs >= kBlockInputs) {
      for_16([&](int step) { pairs[step] = Lanes::load_pairs(weight + step * kTileInputs); });
    } else {
      for_16([&](int step) {
        const std::int64_t left = inputs - step * kTileInputs;
        pairs[step] =
            left > 0 ? load_dwords<BlocksOfBf16>(weight + step * kTileInputs, left) : Lanes::zero();
      });
    }
    multiply_steps<kR>(pairs, x, x_stride, of_steps,
                       [&](int step) { fetch(weight + step * kTileInputs); });
    for (int r = 0; r < kR; ++r) Lanes::store(sums + r * kTile * kSteps, of_steps[r]);
  }

  // Computes the sums of 16 steps, whose pairs are multiplied by those of x. fetch_step(0) to
  // fetch_step(15) are called in between, because fetches that come all at once wait for each
  // other, and loads for them.
  template <int kR, typename FetchStep>
  [[gnu::always_inline]] static void multiply_steps(Lanes::Floats (&pairs)[kTile], const float* x,
                                                    std::int64_t x_stride,
                                                    Lanes::Floats (&sums)[kR],
                                                    FetchStep&& fetch_step) {
    Lanes::transpose(pairs);
    Lanes::Floats first[kR], second[kR];
    for (int r = 0; r < kR; ++r) first[r] = second[r] = Lanes::zero();
    for_16([&](int pair) {
      fetch_step(pair);
      const Lanes::Floats one = Lanes::first_of(pairs[pair]);
      const Lanes::Floats other = Lanes::second_of(pairs[pair]);
      for (int r = 0; r < kR; ++r) {
        const float* of_pair = x + r * x_stride + pair * kSteps;
        first[r] = Lanes::multiply_add(one, Lanes::load(of_pair), first[r]);
        second[r] = Lanes::multiply_add(other, Lanes::load(of_pair + kTile * kSteps), second[r]);
      }
    });
    for (int r = 0; r < kR; ++r) sums[r] = Lanes::add(first[r], second[r]);
  }

  // sum[output] += each of `count` steps[output][step], one after the other.
  static void add_steps(const float (&steps)[kTile][kSteps], std::int64_t count,
                        Lanes::Floats& sum) {
    Lanes::Floats values[kTile];
    for_16([&](int o) { values[o] = Lanes::load(steps[o]); });
    Lanes::transpose(values);
    for_16([&](int step) {
      if (step < count) sum = Lanes::add(sum, values[step]);
    });
  }

  // Adds one step to the sums of `outputs` outputs, where `inputs` inputs are left. x points to the
  // values of the step's first pair.
  template <int kR>
  static void add_step(const Bf16* weight, std::int64_t stride, std::int64_t inputs,
                       std::int64_t outputs, const float* x, std::int64_t x_stride,
                       Lanes::Floats (&sum)[kR]) {
    Lanes::Floats pairs[kTile], first[kR], second[kR];
    for_16([&](int o) {
      pairs[o] =
          o < outputs ? load_dwords<BlocksOfBf16>(weight + o * stride, inputs) : Lanes::zero();
    });
    Lanes::transpose(pairs);
    for (int r = 0; r < kR; ++r) first[r] = second[r] = Lanes::zero();
    for_16([&](int pair) {
      const Lanes::Floats one = Lanes::first_of(pairs[pair]);
      const Lanes::Floats other = Lanes::second_of(pairs[pair]);
      for (int r = 0; r < kR; ++r) {
        const float* of_pair = x + r * x_stride + pair * kSteps;
        first[r] = Lanes::multiply_add(one, Lanes::all(of_pair[0]), first[r]);
        second[r] = Lanes::multiply_add(other, Lanes::all(of_pair[kTile * kSteps]), second[r]);
      }
    });
    for (int r = 0; r < kR; ++r) sum[r] = Lanes::add(sum[r], Lanes::add(first[r], second[r]));
  }
};

// Few rows: weights are tiles as they lie, 16 outputs by 32 inputs; x is one column of tiles.
struct DotInTiles {
  using Few = DotInTileOrder;
  static constexpr int kFewRows = Few::kMaxRows;

  // Whole blocks of few rows, which take twice as much.
  static std::int64_t row_floats(std::int64_t inputs) { return Few::row_floats(inputs) / 2; }

  static std::int64_t prepared_rows(std::int64_t rows) {
    return rows <= kFewRows ? 2 * rows : kTile;
  }

  static void prepare(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                      std::int64_t end, float* prepared) {
    if (rows <= kFewRows) return Few::prepare(gemm, first_row, rows, begin, end, prepared);
    static_assert(GemmKernels::kPrepareInputs % kTileInputs == 0);
    pack_columns<BlocksOfBf16, kTile>(
        static_cast<const Bf16*>(gemm.x) + first_row * gemm.x_stride + begin, gemm.x_stride, rows,
        end - begin, prepared + begin / 2 * kTile);
  }

  static void run(const GemmTask& gemm, std::int64_t first_row, int rows, const float* prepared,
                  std::int64_t begin, std::int64_t end) {
    if (rows <= kFewRows) return Few::run(gemm, first_row, rows, prepared, begin, end);
    const TileConfiguration configuration;
    alignas(64) float sums[kTile * kTile];
    for (std::int64_t o = begin; o < end; o += kTile) {
      const std::int64_t count = smaller(end - o, kTile);
      multiply(static_cast<const Bf16*>(gemm.weight) + o * gemm.inputs, gemm.inputs, count,
               o + 2 * kTile <= gemm.outputs, prepared, sums);
      finish_columns<Bf16>(gemm, sums, kTile, first_row, rows, o, count);
    }
  }

 private:
  // The part of a tile of weights that there is, and zeros.
  struct PartOfTile {
    alignas(64) Bf16 elements[kTile * kTileInputs];
    PartOfTile(const Bf16* weight, std::int64_t stride, std::int64_t outputs, std::int64_t inputs) {
      for (int o = 0; o < kTile; ++o) {
        Lanes::store(
            reinterpret_cast<float*>(elements + o * kTileInputs),
            o < outputs ? load_dwords<BlocksOfBf16>(weight + o * stride, inputs) : Lanes::zero());
      }
    }
  };

  // Sums [output][row] of a tile's outputs. A tile's lines lie in as many rows, but memory is read
  // best in one stream: meanwhile the next outputs' weights are fetched in the order in which they
  // lie.
  static void multiply(const Bf16* weight, std::int64_t inputs, std::int64_t outputs,
                       bool fetch_next, const float* x, float* sums) {
    const std::int64_t stride = inputs * 2;
    const Bf16* next = weight + kTile * inputs;
    asm volatile("" ::: "memory");  // tiles are loaded behind the compiler's back
    _tile_zero(0);
    std::int64_t i = 0;
    if (outputs == kTile) {
      for (; i + kTileInputs <= inputs; i += kTileInputs, x += kTile * kTile) {
        if (fetch_next) {
          for (int line = 0; line < kTile; ++line) {
            _mm_prefetch(next + i * kTile + line * kTileInputs, _MM_HINT_T1);
          }
        }
        _tile_loadd(4, weight + i, stride);
        _tile_loadd(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
      }
    }
    for (; i < inputs; i += kTileInputs, x += kTile * kTile) {
      const PartOfTile part(weight + i, inputs, outputs, inputs - i);
      asm volatile("" ::: "memory");
      _tile_loadd(4, part.elements, 64);
      _tile_loadd(6, x, 64);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums, 64);
  }
};

// Two by two tiles of sums at a time (0 to 3), weights in 4 and 5, x in 6 and 7. The second-level
// cache feeds tiles only half as fast as they multiply, so a stretch of two panels of x must stay
// in the first level: 32 KiB of its 48. Weights come from the second level, in place, where they
// have been fetched while the stretch before was multiplied.
struct InTiles {
  using Format = BlocksOfBf16;
  static constexpr int kVectors = 2;
  static constexpr int kRows = kVectors * kTile;
  static constexpr int kOutputs = 128;
  static constexpr int kStepUnit = kTile;
  static constexpr int kSteps = 256;
  static constexpr int kGroup = 2 * kTile;
  // Rows of packed weights do not lie a power of two apart, which would put them into few sets of
  // the cache.
  static constexpr int kWeightStride = kSteps + kTile;
  static constexpr int kUnitRows = 2 * kTile, kUnitOutputs = 2 * kTile;
  static constexpr int kRowCost = 128, kOutputCost = 64;

  using Scope = TileConfiguration;
  // Not the edges, which need zeros, and not if all rows fall into an eighth of the second-level
  // cache.
  static bool in_place(std::int64_t stride, std::int64_t outputs, std::int64_t inputs) {
    return outputs % kGroup == 0 && inputs % kTileInputs == 0 && stride % (16 << 10) != 0;
  }

  static void multiply(const Weights& weights, const float* x, std::int64_t x_stride,
                       std::int64_t outputs, int vectors, std::int64_t steps, bool first,
                       float* sums) {
    const auto group = vectors == 1 ? &by_one : &by_two;
    for (std::int64_t o = 0; o < outputs; o += kGroup) {
      Group of = {.upper = static_cast<const std::byte*>(weights.data) + o * weights.stride,
                  .stride = weights.stride,
                  .next = nullptr,
                  .next_stride = weights.next_stride,
                  .lines = 0};
      if (weights.next != nullptr) {
        of.next = static_cast<const std::byte*>(weights.next) +
                  (o + weights.fetch_begin) * weights.next_stride;
        of.lines = weights.fetch_end - weights.fetch_begin;
      }
      group(of, x, x_stride, steps, first, sums + o * kRows);
    }
  }

 private:
  static constexpr int kRowBytes = kRows * 4;

  struct Group {
    const std::byte* upper;  // tiles of weights
    std::int64_t stride;
    const std::byte* next;  // lines to fetch at each step: `lines` rows of it
    std::int64_t next_stride;
    int lines;

    const std::byte* lower() const { return upper + kTile * stride; }
    void fetch(std::int64_t step) const {
      for (int line = 0; line < lines; ++line) {
        _mm_prefetch(next + line * next_stride + step * 4, _MM_HINT_T1);
      }
    }
  };

  // Two tiles of outputs by one of rows.
  static void by_one(const Group& weights, const float* x, std::int64_t, std::int64_t steps,
                     bool first, float* sums) {
    const std::byte *upper = weights.upper, *lower = weights.lower();
    asm volatile("" ::: "memory");
    if (first) {
      _tile_zero(0);
      _tile_zero(2);
    } else {
      _tile_loadd(0, sums, kRowBytes);
      _tile_loadd(2, sums + kTile * kRows, kRowBytes);
    }
    for (std::int64_t step = 0; step < steps; step += kTile) {
      weights.fetch(step);
      _tile_loadd(6, x + step * kTile, 64);
      _tile_loadd(4, upper + step * 4, weights.stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, lower + step * 4, weights.stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(2, sums + kTile * kRows, kRowBytes);
  }

  // Two tiles of outputs by two of rows.
  static void by_two(const Group& weights, const float* x, std::int64_t x_stride,
                     std::int64_t steps, bool first, float* sums) {
    const std::byte *upper = weights.upper, *lower = weights.lower();
    float* lower_sums = sums + kTile * kRows;
    asm volatile("" ::: "memory");
    if (first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, sums, kRowBytes);
      _tile_loadd(1, sums + kTile, kRowBytes);
      _tile_loadd(2, lower_sums, kRowBytes);
      _tile_loadd(3, lower_sums + kTile, kRowBytes);
    }
    for (std::int64_t step = 0; step < steps; step += kTile) {
      weights.fetch(step);
      _tile_loadd(6, x + step * kTile, 64);
      _tile_loadd(4, upper + step * 4, weights.stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, x + x_stride + step * kTile, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, lower + step * 4, weights.stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(1, sums + kTile, kRowBytes);
    _tile_stored(2, lower_sums, kRowBytes);
    _tile_stored(3, lower_sums + kTile, kRowBytes);
  }
};

}  // namespace

const GemmKernels& gemm_kernels_amx_bf16() {
  return kKernels<DotInTiles, InTiles>;
}

const BlockKernels& quantized_blocks_amx_bf16() {
  return kQuantizedBlocks<InTiles>;
}

}  // namespace nvllm::kernels::cpu
