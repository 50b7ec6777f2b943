// Sums of float32 tensors in tree order on the GPU. Memory-bound: a thread has four columns of a
// row, and all of their sources in flight at once.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/tree_sum.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 4;

template <typename T, typename Bias>
struct Params {
  T* out;
  const float* sources;
  const Bias* bias;  // nullptr: none
  long long elements;
  int columns, count;
  unsigned char blocks[TreeSum::kMaxSources], merges[TreeSum::kMaxSources];
};

struct Four {
  float element[kColumns];

  __device__ __forceinline__ void add(const Four& left) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) element[i] = __fadd_rn(left.element[i], element[i]);
  }
};

// The sum of all sources of these columns. kPerfect: the number of sources of a perfect tree; 0:
// the order is p.merges.
template <int kPerfect, typename Load, typename P>
__device__ __forceinline__ Four sum_of(const P& p, const Load& load) {
  constexpr int kSources = kPerfect > 0 ? kPerfect : TreeSum::kMaxSources;
  Four source[kSources];
#pragma unroll
  for (int i = 0; i < kSources; ++i) {
    if (kPerfect > 0 || i < p.count) source[i] = load(p.blocks[i]);
  }
  if constexpr (kPerfect > 0) {
#pragma unroll
    for (int step = 1; step < kPerfect; step *= 2) {
#pragma unroll
      for (int i = 0; i < kPerfect; i += 2 * step) {
        Four sum = source[i + step];
        sum.add(source[i]);
        source[i] = sum;
      }
    }
    return source[0];
  }
  // The top of the stack is at index 0, so that all of it stays in registers.
  Four stack[kSources] = {};
#pragma unroll
  for (int i = 0; i < kSources; ++i) {
    if (i >= p.count) break;
#pragma unroll
    for (int to = kSources - 1; to > 0; --to) stack[to] = stack[to - 1];
    stack[0] = source[i];
    for (int merge = 0; merge < p.merges[i]; ++merge) {
      stack[0].add(stack[1]);
#pragma unroll
      for (int to = 1; to + 1 < kSources; ++to) stack[to] = stack[to + 1];
    }
  }
  return stack[0];
}

// kAligned: four columns are always aligned 16-byte vectors.
template <typename T, typename Bias, bool kAligned, int kPerfect>
__global__ void __launch_bounds__(kThreads) tree_sum_kernel(const Params<T, Bias> p) {
  pdl_begin();
  const long long first =
      (static_cast<long long>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kColumns;
  if (first >= p.elements) return;
  Four sum = sum_of<kPerfect>(p, [&](int block) {
    const float* const from = p.sources + block * p.elements + first;
    Four four{};
    if constexpr (kAligned) {
      *reinterpret_cast<float4*>(&four) = *reinterpret_cast<const float4*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first + i < p.elements) four.element[i] = from[i];
      }
    }
    return four;
  });
  if (p.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const long long column = (first + i) % p.columns;
      sum.element[i] = __fadd_rn(sum.element[i], widen(p.bias[column]));
    }
  }
  T* const to = p.out + first;
  if constexpr (kAligned) {
    struct alignas(kColumns * sizeof(T)) Narrow {
      T element[kColumns];
    } narrow_four;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) narrow_four.element[i] = narrow<T>(sum.element[i]);
    *reinterpret_cast<Narrow*>(to) = narrow_four;
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (first + i < p.elements) to[i] = narrow<T>(sum.element[i]);
    }
  }
}

template <typename T, typename Bias, bool kAligned>
void launch(const Params<T, Bias>& p, bool perfect, Stream& stream) {
  const auto kernel = !perfect       ? tree_sum_kernel<T, Bias, kAligned, 0>
                      : p.count == 8 ? tree_sum_kernel<T, Bias, kAligned, 8>
                      : p.count == 4 ? tree_sum_kernel<T, Bias, kAligned, 4>
                                     : tree_sum_kernel<T, Bias, kAligned, 2>;
  launch_with_pdl("launching tree_sum", kernel,
                  dim3(blocks_for(p.elements, static_cast<long long>(kThreads) * kColumns)),
                  dim3(kThreads), nvllm::cuda::native(stream), p);
}

// Whether it is a perfect tree of 2, 4 or 8 sources.
bool is_perfect(const TreeSum& args) {
  constexpr int kMerges[] = {0, 1, 0, 2, 0, 1, 0, 3};
  if (args.count != 2 && args.count != 4 && args.count != 8) return false;
  for (int i = 0; i < args.count; ++i) {
    if (args.merges[static_cast<std::size_t>(i)] != kMerges[i]) return false;
  }
  return true;
}

template <typename T, typename Bias>
void launch(const TreeSum& args, Stream& stream) {
  Params<T, Bias> p{.out = args.out.as<T>(),
                    .sources = args.sources.as<const float>(),
                    .bias = args.bias.as<const Bias>(),
                    .elements = args.out.elements(),
                    .columns = static_cast<int>(args.out.shape[1]),
                    .count = args.count,
                    .blocks = {},
                    .merges = {}};
  for (std::size_t i = 0; i < TreeSum::kMaxSources; ++i) {
    p.blocks[i] = args.blocks[i];
    p.merges[i] = args.merges[i];
  }
  const bool aligned = p.elements % kColumns == 0 && args.sources.aligned(16) &&
                       args.out.aligned(kColumns * sizeof(T));
  aligned ? launch<T, Bias, true>(p, is_perfect(args), stream)
          : launch<T, Bias, false>(p, is_perfect(args), stream);
}

}  // namespace

void tree_sum(const TreeSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    if (args.bias.data == nullptr) return launch<T, T>(args, stream);
    with_element_type(args.bias.dtype, [&]<typename Bias>(Bias) { launch<T, Bias>(args, stream); });
  });
}

}  // namespace nvllm::kernels::cuda
