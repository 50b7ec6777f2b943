#include "kernels/pointwise/tree_sum.h"

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

// Whether each merge has two values, and one is left.
bool leaves_one(const TreeSum& args) {
  int depth = 0;
  for (int i = 0; i < args.count; ++i) {
    depth += 1 - args.merges[i];
    if (depth < 1) return false;
  }
  return depth == 1;
}

}  // namespace

void check_tree_sum(const TreeSum& args) {
  constexpr Arguments check("tree_sum");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out");
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  check.require_dense(args.sources, "sources", DType::f32, {args.sources.shape[0], columns});
  if (args.count < 1 || args.count > TreeSum::kMaxSources) {
    fail("tree_sum: count is ", args.count, "; it must be 1 to ", TreeSum::kMaxSources);
  }
  for (int i = 0; i < args.count; ++i) {
    if ((args.blocks[i] + 1) * rows <= args.sources.shape[0]) continue;
    fail("tree_sum: block ", int{args.blocks[i]}, " of ", rows, " rows is not in sources ",
         args.sources.describe());
  }
  if (!leaves_one(args)) fail("tree_sum: merges do not leave one of ", args.count, " sources");
  if (args.bias.data == nullptr) return;
  check.require_floats(args.bias, "bias", 1, "[columns]");
  check.require_dense(args.bias, "bias", args.bias.dtype, {columns});
}

void tree_sum(const TreeSum& args, Stream& stream) {
  check_tree_sum(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, tree_sum(args, stream));
}

// On the CPU, eight elements at a time.
namespace cpu {
namespace {

template <typename T, typename Bias>
struct TreeJob {
  T* out;
  const float* sources;
  const Bias* bias;  // nullptr: none
  std::int64_t rows, columns;
  int count;
  std::array<std::uint8_t, TreeSum::kMaxSources> blocks, merges;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t column = 0; column < columns; column += kLanes) {
        add(row, column, std::min<std::int64_t>(columns - column, kLanes));
      }
    }
  }

  template <typename Element>
  static __m256 load(const Element* from, std::int64_t count) {
    return count == kLanes ? load8(from) : load_some(from, count);
  }

  void add(std::int64_t row, std::int64_t column, std::int64_t elements) const {
    __m256 stack[TreeSum::kMaxSources];
    int top = -1;
    for (int i = 0; i < count; ++i) {
      const std::int64_t at = (blocks[i] * rows + row) * columns + column;
      __m256 value = load(sources + at, elements);
      for (int merge = 0; merge < merges[i]; ++merge) value = _mm256_add_ps(stack[top--], value);
      stack[++top] = value;
    }
    __m256 sum = stack[0];
    if (bias != nullptr) sum = _mm256_add_ps(sum, load(bias + column, elements));
    T* const to = out + row * columns + column;
    if (elements == kLanes) {
      store8(to, sum);
    } else {
      store_some(to, sum, elements);
    }
  }
};

}  // namespace

void tree_sum(const TreeSum& args, Stream& stream) {
  const DType bias_type = args.bias.data == nullptr ? DType::f32 : args.bias.dtype;
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    with_element_type(bias_type, [&]<typename Bias>(Bias) {
      const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
      const std::int64_t row_bytes = (args.count * sizeof(float) + sizeof(T)) * columns;
      submit_rows(stream, rows, row_bytes,
                  TreeJob<T, Bias>{.out = args.out.as<T>(),
                                   .sources = args.sources.as<const float>(),
                                   .bias = args.bias.as<const Bias>(),
                                   .rows = rows,
                                   .columns = columns,
                                   .count = args.count,
                                   .blocks = args.blocks,
                                   .merges = args.merges});
    });
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
