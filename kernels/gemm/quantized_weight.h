// Quantized weights as GEMMs read them: how values, scales and offsets lie in memory.
//
// There are four formats, and all that checkpoints hold is repacked into one of them while it is
// loaded:
//
//   fp8    8-bit floats (e4m3) in groups of 128 inputs
//   int8   integers of 8 bits in groups of 16, 32, 64 or 128 inputs
//   int4   integers of 4 bits in groups of 32, 64 or 128 inputs
//   mxfp4  floats of 4 bits (e2m1) in groups of 32 inputs, whose scales are powers of two
//
//   weight[o, i] = scale[o, group] * value                         fp8, mxfp4
//                = scale[o, group] * (integer - zero) + offset[o, group]   int8, int4
//
// where zero is 128 (int8) or 8 (int4) and group is i / group size. So symmetric formats have
// offsets of 0.
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
// Scales are [outputs, groups], float32, of fp8, and [outputs, groups, 2], float16, of integers: a
// scale and an offset, both times 256: scales from 2.4e-7 to kMaxScale are normal numbers. Of mxfp4
// they are [outputs, groups] of a byte each (e8m0), s, which stands for 2^(s - 127); 2^-127 may
// count as 0, and 255, which stands for NaN, is none. `groups` counts the padded inputs, too; the
// scales of groups that have no input are 0, or 2^-127.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/tensor_view.h"

namespace nvllm::kernels {

// How a weight's values are stored: a property of the weight.
enum class WeightFormat : std::uint8_t { f32, bf16, f16, fp8, int8, int4, mxfp4 };

constexpr bool is_quantized(WeightFormat format) {
  return format >= WeightFormat::fp8;
}

// Whether values are numbers, with a scale and no offset. Kernels never quantize the x of mxfp4.
constexpr bool has_float_values(WeightFormat format) {
  return format == WeightFormat::fp8 || format == WeightFormat::mxfp4;
}
// Whether values have 4 bits.
constexpr bool has_nibbles(WeightFormat format) {
  return format == WeightFormat::int4 || format == WeightFormat::mxfp4;
}
// The inputs of a block of 64 bytes.
constexpr int block_inputs_of(WeightFormat format) {
  return has_nibbles(format) ? 128 : 64;
}

// "fp8"
const char* name_of(WeightFormat format);

inline constexpr std::int64_t kQuantizedBlockBytes = 64;
inline constexpr std::int64_t kFp8Group = 128;
inline constexpr std::int64_t kMxfp4Group = 32;
inline constexpr float kScaleUnit = 1.0f / 256;  // of float16 scales and offsets
inline constexpr float kMaxScale = 65504 * kScaleUnit;
inline constexpr float kMaxFp8 = 448;

// A quantized weight's format and shape, and what follows from them.
struct QuantizedShape {
  WeightFormat format = WeightFormat::fp8;
  std::int64_t outputs = 0, inputs = 0;
  std::int64_t group = kFp8Group;  // inputs that share a scale

  std::int64_t block_inputs() const { return block_inputs_of(format); }
  std::int64_t row_blocks() const { return (inputs + block_inputs() - 1) / block_inputs(); }
  std::int64_t row_bytes() const { return row_blocks() * kQuantizedBlockBytes; }
  // Whole vectors of four scales belong to 512 inputs at most, so this is padded to 128 inputs.
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

// Where input i of a block lies: its byte, and of 4 bits which of the byte's (from 0 or 4 on).
struct BlockPlace {
  int byte = 0, shift = 0;
};
BlockPlace place_in_block(WeightFormat format, int input);

// One output of a weight, as numbers: what files hold, before it is packed.
struct QuantizedRow {
  std::vector<std::uint8_t> values;    // [inputs]: bytes of e4m3, codes of e2m1, or integers
  std::vector<float> scales, offsets;  // [groups]; offsets of integers only
};

// Write an output's row, of shape.inputs values as QuantizedRow has them, and its scales and
// offsets. Those of mxfp4 are powers of two. All of shape.row_bytes(), or of shape.scale_columns(),
// is written.
void pack_values(const QuantizedShape& shape, const std::uint8_t* values, std::byte* out);
void pack_scales(const QuantizedShape& shape, std::span<const float> scales,
                 std::span<const float> offsets, std::byte* out);
// Writes an output's row and its scales; `values` takes shape.row_bytes(), `scales` the bytes of
// shape.scale_columns(). Both are wholly written.
void pack_row(const QuantizedShape& shape, const QuantizedRow& row, std::byte* values,
              std::byte* scales);

// An output's weights from packed bytes, [inputs], in float32.
void dequantize_row(const QuantizedShape& shape, const std::byte* values, const std::byte* scales,
                    float* out);

// Quantizes an output's weights: each group's largest magnitude is represented (fp8: by 448), the
// others are rounded to the nearest. fp8, int8 and int4 are symmetric. The scale of mxfp4 is the
// smallest power of two by which the largest magnitude can be represented.
QuantizedRow quantize_row(const QuantizedShape& shape, std::span<const float> weights);

// Of a scale of mxfp4 (e8m0), and of a power of two the scale.
float e8m0_to_float(std::uint8_t byte);
std::uint8_t float_to_e8m0(float power);
// The numbers of mxfp4 (e2m1) by their four bits, of which the highest is the sign.
inline constexpr float kE2m1[16] = {0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float fp8_to_float(std::uint8_t byte);
// To the nearest, ties to even; what is larger than 448 becomes 448.
std::uint8_t float_to_fp8(float value);

}  // namespace nvllm::kernels
