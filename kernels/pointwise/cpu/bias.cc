// Bias on the CPU.
#include "kernels/pointwise/cpu/bias.h"

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels::cpu {
namespace {

template <typename T>
struct Job {
  T* x;
  const T* bias;
  std::int64_t columns;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < end; ++r) {
      T* row = x + r * columns;
      std::int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) {
        store8(row + i, _mm256_add_ps(load8(row + i), load8(bias + i)));
      }
      for (; i < columns; ++i) row[i] = from_float<T>(to_float(row[i]) + to_float(bias[i]));
    }
  }
};

}  // namespace

void add_bias(const AddBias& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.x.shape[1];
    submit_rows(stream, args.x.shape[0], 2 * columns * sizeof(T),
                Job<T>{args.x.as<T>(), args.bias.as<T>(), columns});
  });
}

}  // namespace nvllm::kernels::cpu
