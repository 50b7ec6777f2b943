// Reproducible random values: each is a function of a seed and its index in the whole tensor, so
// that every device, and every rank for its part, generates the same ones.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out[r][c] = round(center + width * u), u in [-1, 1) a hash of seed and the element's index in the
// whole tensor, (first_row + r) * whole_columns + first_column + c.
struct RandomFill {
  TensorView out;  // [rows, columns], dense
  std::uint64_t seed = 0;
  std::int64_t first_row = 0;
  std::int64_t first_column = 0;
  std::int64_t whole_columns = 0;
  float center = 0;
  float width = 1;
};

// float32, bfloat16 or float16; the same bits on every device.
void random_fill(const RandomFill& args, Stream& stream);
void check_random_fill(const RandomFill& args);

// Fills out, int32, with random bits like those of quantized weights: the lowest bit of each byte
// is 0, so that no byte is an fp8 NaN. center and width are ignored.
void random_bytes(const RandomFill& args, Stream& stream);
void check_random_bytes(const RandomFill& args);
inline constexpr std::uint32_t kRandomBytes = 0xfefefefe;

}  // namespace nvllm::kernels
