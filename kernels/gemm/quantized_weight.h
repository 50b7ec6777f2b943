// The memory layout of quantized weights, as GEMMs read them: values, scales and offsets.
//
// There are four formats; checkpoints' formats are repacked into one of them while loading:
//
//   fp8    8-bit floats (e4m3) in groups of 128 inputs
//   int8   integers of 8 bits in groups of 16, 32, 64 or 128 inputs
//   int4   integers of 4 bits in groups of 32, 64 or 128 inputs
//   mxfp4  floats of 4 bits (e2m1) in groups of 32 inputs, whose scales are powers of two
//
//   weight[o, i] = scale[o, group] * value                         fp8, mxfp4
//                = scale[o, group] * (integer - zero) + offset[o, group]   int8, int4
//
// where zero is 128 (int8) or 8 (int4) and group is i / group size. Symmetric formats have zero
// offsets.
//
// Values are [outputs, row bytes] of blocks of 64 bytes: 64 inputs of fp8 and int8, 128 of int4 and
// mxfp4. The last block of a row is padded. Within a block the inputs are in the order in which a
// quad of threads holds its fragments of tensor-core operands (mma.m16n8k16 and wgmma): thread t of
// four has bytes 16 t to 16 t + 15, and
//
//   fp8, int8: byte e of its word k: input 16 k + 2 t + (0, 1, 8, 9)[e]
//   int4, mxfp4: bits 4 n of its word k hold input 32 k + 16 (n % 4 / 2) + 2 t + (0, 8)[n % 2] if
//         n < 4, and the input after it if n >= 4: two of one thread's neighbours are 16 bits
//         apart.
//
// Scales of fp8 are [outputs, groups], float32; those of integers are [outputs, groups, 2],
// float16: a scale and an offset, both times 256, so that scales from 2.4e-7 to kMaxScale are
// normal numbers. Those of mxfp4 are [outputs, groups] of one byte each (e8m0), s, which stands for
// 2^(s - 127); 2^-127 may count as 0, and 255, which stands for NaN, does not occur. `groups`
// includes padded inputs; groups without inputs have a scale of 0, or 2^-127.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/tensor_view.h"

namespace nvllm::kernels {

// How a weight's values are stored: a property of the weight. Their order means nothing: code asks
// the functions below, or has a switch over all formats without default, so that a new one does not
// compile before somebody has said what it means there.
enum class WeightFormat : std::uint8_t { f32, bf16, f16, fp8, int8, int4, mxfp4 };

constexpr int value_bits(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return 32;
    case WeightFormat::bf16:
    case WeightFormat::f16: return 16;
    case WeightFormat::fp8:
    case WeightFormat::int8: return 8;
    case WeightFormat::int4:
    case WeightFormat::mxfp4: return 4;
  }
  return 0;
}

// Whether values are as the formats above have them, with scales.
constexpr bool is_quantized(WeightFormat format) {
  return value_bits(format) < 16;
}

// Whether values are floats, with a scale and no offset. Kernels never quantize x for mxfp4.
constexpr bool has_float_values(WeightFormat format) {
  return format == WeightFormat::fp8 || format == WeightFormat::mxfp4;
}
// Whether values have 4 bits.
constexpr bool has_nibbles(WeightFormat format) {
  return value_bits(format) == 4;
}
// The inputs of a block of 64 bytes.
constexpr int block_inputs_of(WeightFormat format) {
  return has_nibbles(format) ? 128 : 64;
}

// "fp8"
const char* name_of(WeightFormat format);

// Aborts: what ends a switch over formats for those that cannot come there. `what`: what is done.
[[noreturn]] void unexpected_format(WeightFormat format, const char* what);

inline constexpr std::int64_t kQuantizedBlockBytes = 64;
inline constexpr std::int64_t kFp8Group = 128;
inline constexpr std::int64_t kMxfp4Group = 32;
inline constexpr float kScaleUnit = 1.0f / 256;  // of float16 scales and offsets
inline constexpr float kMaxScale = 65504 * kScaleUnit;
inline constexpr float kMaxFp8 = 448;

// A quantized weight's format and shape, and what derives from them.
struct QuantizedShape {
  WeightFormat format = WeightFormat::fp8;
  std::int64_t outputs = 0, inputs = 0;
  std::int64_t group = kFp8Group;  // inputs per scale

  std::int64_t block_inputs() const { return block_inputs_of(format); }
  std::int64_t row_blocks() const { return (inputs + block_inputs() - 1) / block_inputs(); }
  std::int64_t row_bytes() const { return row_blocks() * kQuantizedBlockBytes; }
  // Four scales (one vector load) cover at most 512 inputs, so inputs are padded to a multiple of
  // 128.
  std::int64_t groups() const { return (inputs + 127) / 128 * 128 / group; }
  DType scale_type() const {
    if (format == WeightFormat::mxfp4) return DType::u8;
    return format == WeightFormat::fp8 ? DType::f32 : DType::f16;
  }
  std::int64_t scale_columns() const { return has_float_values(format) ? groups() : groups() * 2; }
  std::size_t value_bytes() const { return static_cast<std::size_t>(outputs * row_bytes()); }
  std::size_t scale_bytes() const {
    return static_cast<std::size_t>(outputs * scale_columns()) * size_of(scale_type());
  }
};

// The location of input i in a block: its byte and, for 4-bit values, its first bit (0 or 4).
struct BlockPlace {
  int byte = 0, shift = 0;
};
BlockPlace place_in_block(WeightFormat format, int input);

// One output of a weight before packing, as files hold it.
struct QuantizedRow {
  std::vector<std::uint8_t> values;    // [inputs]: bytes of e4m3, codes of e2m1, or integers
  std::vector<float> scales, offsets;  // [groups]; offsets of integers only
};

// Write an output's row, from shape.inputs values as in QuantizedRow, and its scales and offsets
// (powers of two for mxfp4). All of shape.row_bytes(), or of shape.scale_columns(), is written.
void pack_values(const QuantizedShape& shape, const std::uint8_t* values, std::byte* out);
void pack_scales(const QuantizedShape& shape, std::span<const float> scales,
                 std::span<const float> offsets, std::byte* out);
// Writes an output's row, shape.row_bytes() bytes, and its scales, shape.scale_columns() elements.
// Both are written completely.
void pack_row(const QuantizedShape& shape, const QuantizedRow& row, std::byte* values,
              std::byte* scales);

// An output's weights, [inputs], in float32, from packed bytes.
void dequantize_row(const QuantizedShape& shape, const std::byte* values, const std::byte* scales,
                    float* out);

// Quantizes an output's weights: the largest magnitude of each group maps to the largest value
// (fp8: 448), the others are rounded to nearest. fp8, int8 and int4 are symmetric. An mxfp4 scale
// is the smallest power of two with which the largest magnitude is representable.
QuantizedRow quantize_row(const QuantizedShape& shape, std::span<const float> weights);

// Conversions between an mxfp4 scale (e8m0) and its power of two.
float e8m0_to_float(std::uint8_t byte);
std::uint8_t float_to_e8m0(float power);
// The mxfp4 (e2m1) values by their four bits, the highest of which is the sign.
inline constexpr float kE2m1[16] = {0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float fp8_to_float(std::uint8_t byte);
// Rounds to nearest, ties to even; larger values become 448.
std::uint8_t float_to_fp8(float value);

}  // namespace nvllm::kernels
