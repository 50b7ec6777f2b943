#include "kernels/gemm/quantized_weight.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace nvllm::kernels {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::fp8, WeightFormat::int8, WeightFormat::int4,
                                     WeightFormat::mxfp4};

std::int64_t largest_group(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? kMxfp4Group : 128;
}

std::vector<float> normal_floats(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> packed_and_back(const QuantizedShape& shape, const QuantizedRow& row) {
  std::vector<std::byte> values(shape.value_bytes()), scales(shape.scale_bytes());
  pack_row(shape, row, values.data(), scales.data());
  std::vector<float> out(static_cast<std::size_t>(shape.inputs));
  dequantize_row(shape, values.data(), scales.data(), out.data());
  return out;
}

TEST_CASE("every fp8 number is read and written as itself") {
  CHECK(fp8_to_float(0x38) == 1.0f);
  CHECK(fp8_to_float(0x01) == 0x1p-9f);
  CHECK(fp8_to_float(0x08) == 0x1p-6f);
  CHECK(fp8_to_float(0xfe) == -448.0f);
  CHECK(std::isnan(fp8_to_float(0x7f)));
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 127) == 127) continue;
    CHECK(float_to_fp8(fp8_to_float(static_cast<std::uint8_t>(byte))) == byte);
  }
}

TEST_CASE("floats go to the nearest fp8 number, ties to even, large ones to 448") {
  for (int byte = 0; byte < 126; ++byte) {
    const float low = fp8_to_float(static_cast<std::uint8_t>(byte));
    const float high = fp8_to_float(static_cast<std::uint8_t>(byte + 1));
    const float middle = (low + high) / 2;
    CHECK(float_to_fp8(middle) == (byte % 2 == 0 ? byte : byte + 1));
    CHECK(float_to_fp8(std::nextafter(middle, 0.0f)) == byte);
    CHECK(float_to_fp8(std::nextafter(middle, 500.0f)) == byte + 1);
    CHECK(float_to_fp8(-std::nextafter(middle, 500.0f)) == ((byte + 1) | 128));
  }
  CHECK(fp8_to_float(float_to_fp8(1e30f)) == 448.0f);
  CHECK(fp8_to_float(float_to_fp8(-460.0f)) == -448.0f);
}

TEST_CASE("inputs of a block are in the order of tensor-core fragments, each at its own place") {
  for (const WeightFormat format : kFormats) {
    const QuantizedShape shape{
        .format = format, .outputs = 1, .inputs = 1, .group = largest_group(format)};
    std::set<int> places;
    for (int input = 0; input < shape.block_inputs(); ++input) {
      const BlockPlace place = place_in_block(format, input);
      places.insert(place.byte * 8 + place.shift);
      // The thread of four that has the input in its fragment of mma.m16n8k16.
      CHECK(place.byte / 16 == input % 8 / 2);
    }
    CHECK(places.size() == static_cast<std::size_t>(shape.block_inputs()));
  }
  // Step 2, the second half's second input of thread 3: k = 32 + 8 + 6 + 1.
  CHECK(place_in_block(WeightFormat::fp8, 47).byte == 3 * 16 + 2 * 4 + 3);
  // In int4 it is in word 1, in the place of step 0's second half: nibble 1, and 16 bits further.
  CHECK(place_in_block(WeightFormat::int4, 47).byte == 3 * 16 + 1 * 4 + 2);
  CHECK(place_in_block(WeightFormat::int4, 47).shift == 4);
}

TEST_CASE("a whole block has as many bits as its values, of quantized formats alone") {
  for (const WeightFormat format : kFormats) {
    CAPTURE(name_of(format));
    CHECK(is_quantized(format));
    CHECK(block_inputs_of(format) * value_bits(format) == kQuantizedBlockBytes * 8);
  }
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16}) {
    CAPTURE(name_of(format));
    CHECK(!is_quantized(format));
  }
}

TEST_CASE("a packed row is read back, with any number of inputs") {
  for (const WeightFormat format : kFormats) {
    for (const std::int64_t inputs : {1, 63, 64, 100, 128, 576, 1000}) {
      const bool fp8 = format == WeightFormat::fp8;
      const QuantizedShape shape{
          .format = format, .outputs = 1, .inputs = inputs, .group = fp8 ? 128 : 32};
      QuantizedRow row;
      std::mt19937 random(static_cast<unsigned>(inputs));
      const bool mxfp4 = format == WeightFormat::mxfp4;
      const unsigned values = has_nibbles(format) ? 16 : 256;
      for (std::int64_t i = 0; i < inputs; ++i) {
        const auto value = static_cast<std::uint8_t>(random() % values);
        row.values.push_back(fp8 && (value & 127) == 127 ? 0 : value);
      }
      for (std::int64_t i = 0; i < inputs; i += shape.group) {
        row.scales.push_back(mxfp4 ? e8m0_to_float(static_cast<std::uint8_t>(random() % 255))
                                   : static_cast<float>(random() % 1000 + 1) * 0x1p-12f);
        row.offsets.push_back(static_cast<float>(random() % 1000) * 0x1p-10f);
      }
      const std::vector<float> back = packed_and_back(shape, row);
      int wrong = 0;
      for (std::int64_t i = 0; i < inputs; ++i) {
        const float scale = row.scales[i / shape.group], offset = row.offsets[i / shape.group];
        const int zero = format == WeightFormat::int4 ? 8 : 128;
        const float right = fp8     ? scale * fp8_to_float(row.values[i])
                            : mxfp4 ? scale * kE2m1[row.values[i]]
                                    : scale * static_cast<float>(row.values[i] - zero) + offset;
        wrong += back[i] != right;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("quantized weights differ from the given ones by half a step at most") {
  for (const WeightFormat format : {WeightFormat::fp8, WeightFormat::int8, WeightFormat::int4}) {
    const bool fp8 = format == WeightFormat::fp8;
    const QuantizedShape shape{.format = format, .outputs = 1, .inputs = 1000, .group = 128};
    const std::vector<float> weights = normal_floats(shape.inputs, 3);
    const std::vector<float> back = packed_and_back(shape, quantize_row(shape, weights));
    for (std::size_t begin = 0; begin < weights.size(); begin += 128) {
      float largest = 0;
      for (std::size_t i = begin; i < std::min(begin + 128, weights.size()); ++i)
        largest = std::max(largest, std::fabs(weights[i]));
      const float max_value = fp8 ? 448.0f : format == WeightFormat::int4 ? 7.0f : 127.0f;
      const float scale = largest / max_value;
      for (std::size_t i = begin; i < std::min(begin + 128, weights.size()); ++i) {
        const float step = fp8 ? std::max(std::fabs(weights[i]) / 8, scale * 0x1p-9f) : scale;
        CHECK(std::fabs(back[i] - weights[i]) <= step * 0.501f + largest * 0x1p-11f);
      }
    }
  }
  const QuantizedShape shape{.format = WeightFormat::int4, .outputs = 1, .inputs = 32, .group = 32};
  const std::vector<float> zeros(32);
  CHECK(packed_and_back(shape, quantize_row(shape, zeros)) == zeros);
}

TEST_CASE("weights in mxfp4 are the nearest numbers of the smallest scale that holds the largest") {
  const QuantizedShape shape{
      .format = WeightFormat::mxfp4, .outputs = 1, .inputs = 70, .group = kMxfp4Group};
  std::vector<float> weights(70);
  const float some[] = {6, -0.24f, 0.25f, 0.26f, 0.75f, 1.26f, -2.5f, 5, 5.01f, 3.4f};
  std::copy(std::begin(some), std::end(some), weights.begin());
  weights[32] = 6.1f, weights[33] = 1;  // the second group
  weights[64] = -0x1p-125f;             // the third
  const std::vector<float> back = packed_and_back(shape, quantize_row(shape, weights));
  const float right[] = {6, -0.0f, 0, 0.5f, 1, 1.5f, -2, 4, 6, 3};
  for (std::size_t i = 0; i < 10; ++i) {
    CAPTURE(i);
    CHECK(back[i] == right[i]);
  }
  CHECK(back[32] == 6);  // of the numbers times 2
  CHECK(back[33] == 1);
  CHECK(back[64] == -0x1p-125f);
  CHECK(back[65] == 0);
}

TEST_CASE("scales of mxfp4 are powers of two, as bytes") {
  CHECK(e8m0_to_float(127) == 1.0f);
  CHECK(e8m0_to_float(0) == 0x1p-127f);
  CHECK(e8m0_to_float(254) == 0x1p127f);
  CHECK(std::isnan(e8m0_to_float(255)));
  for (int byte = 0; byte < 256; ++byte) {
    CHECK(float_to_e8m0(e8m0_to_float(static_cast<std::uint8_t>(byte))) == byte);
  }
}

TEST_CASE("a weight that is no finite number still is none when it is quantized") {
  for (const WeightFormat format : kFormats) {
    const QuantizedShape shape{
        .format = format, .outputs = 1, .inputs = 300, .group = largest_group(format)};
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> weights = normal_floats(shape.inputs, 3);
      weights[130] = bad;
      const std::vector<float> back = packed_and_back(shape, quantize_row(shape, weights));
      CHECK_FALSE(std::isfinite(back[130]));
      // Other groups are what they were.
      CHECK(std::isfinite(back[127]));
      CHECK(std::isfinite(back[256]));
    }
  }
}

}  // namespace
}  // namespace nvllm::kernels
