// Reproducible random values: each is a function of a seed and its place in the whole tensor, so
// that every device, and every rank for its part, makes the same ones.
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

// Enqueues it. float32, bfloat16 or float16; the same bits on every device.
void random_fill(const RandomFill& args, Stream& stream);
void check_random_fill(const RandomFill& args);

}  // namespace nvllm::kernels
