#include "kernels/pointwise/random_fill.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/random_bits.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

void check_random_fill(const RandomFill& args) {
  constexpr Arguments check("random_fill");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out");
  if (args.first_row < 0)
    fail("random_fill: first_row is ", args.first_row, "; it must be at least 0");
  if (args.first_column < 0 || args.first_column + args.out.shape[1] > args.whole_columns) {
    fail("random_fill: columns ", args.first_column, " to ", args.first_column + args.out.shape[1],
         " are not all among the whole tensor's ", args.whole_columns, " columns");
  }
}

void random_fill(const RandomFill& args, Stream& stream) {
  check_random_fill(args);
  if (args.out.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::random_fill(args, stream);
#endif
  cpu::random_fill(args, stream);
}

void random_fill_reference(const RandomFill& args) {
  check_random_fill(args);
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    T* out = args.out.as<T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto index = static_cast<std::uint64_t>((args.first_row + row) * args.whole_columns +
                                                      args.first_column + i);
        const RandomKeys keys(args.seed, index >> 32);
        const float unit = keys.unit(static_cast<std::uint32_t>(index));
        out[row * columns + i] = from_float<T>(std::fma(args.width, unit, args.center));
      }
    }
  });
}

}  // namespace nvllm::kernels
