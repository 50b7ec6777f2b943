// Grouped GEMM kernel parameters, and the units into which kernels cut groups.
#pragma once

#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {

template <typename T>
struct GroupedParams {
  T* out;
  const T* x;
  const T* weight;
  const T* bias;           // nullptr: none
  const int* start;        // [groups + 1]
  const int* source_rows;  // nullptr: x has the rows in order
  int groups, outputs, inputs;
  int columns;  // of out: outputs, or half of them with a gated activation

  explicit GroupedParams(const GroupedGemm& grouped)
      : out(grouped.out.as<T>()),
        x(grouped.x.as<const T>()),
        weight(grouped.weight.values.as<const T>()),
        bias(grouped.weight.bias.as<const T>()),
        start(grouped.start.as<const int>()),
        source_rows(grouped.source_rows.as<const int>()),
        groups(static_cast<int>(grouped.groups())),
        outputs(static_cast<int>(grouped.outputs())),
        inputs(static_cast<int>(grouped.weight.inputs())),
        columns(static_cast<int>(grouped.out.shape[1])) {}

  // Adds the biases, if any, of two adjacent outputs of a group to their sums.
  __device__ __forceinline__ void add_bias(int group, int output, float& low, float& high) const {
    if (bias == nullptr) return;
    const T* const of = bias + static_cast<long long>(group) * outputs + output;
    low += widen(of[0]), high += widen(of[1]);
  }

  // The row of x that this row reads.
  __device__ __forceinline__ long long source_of(int row) const {
    return source_rows == nullptr ? row : source_rows[row];
  }
};

// Up to kRows rows of one group that are processed together.
struct GroupUnit {
  int group, first_row, rows;
};

// The units of all groups, in the block's shared memory: for each group its first row and the
// number of units before it; plus one sentinel entry.
template <int kRows>
struct GroupUnits {
  int *rows, *units;
  int groups;

  static constexpr int bytes(int groups) {
    return (groups + 1) * 2 * static_cast<int>(sizeof(int));
  }

  __device__ __forceinline__ GroupUnits(char* shared, int groups)
      : rows(reinterpret_cast<int*>(shared)), units(rows + groups + 1), groups(groups) {}

  // Called by all threads of the block; synchronizes them. of: the value that a start counts as.
  template <typename Of>
  __device__ __forceinline__ void find(const int* start, const Of& of) const {
    for (int i = threadIdx.x; i <= groups; i += blockDim.x) rows[i] = of(start[i]);
    __syncthreads();
    if (threadIdx.x < 32) count_units();
    __syncthreads();
  }

  __device__ __forceinline__ void find(const int* start) const {
    find(start, [](int row) { return row; });
  }

  __device__ __forceinline__ int count() const { return units[groups]; }

  __device__ __forceinline__ GroupUnit at(int unit) const {
    int low = 0, high = groups - 1;  // the last group with at most this many units before it
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (units[middle] <= unit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const int first = rows[low] + (unit - units[low]) * kRows;
    return {low, first, min(kRows, rows[low + 1] - first)};
  }

 private:
  // Called by one warp; each lane has some consecutive groups.
  __device__ __forceinline__ void count_units() const {
    const int lane = threadIdx.x, each = groups / 32 + 1;
    const int begin = lane * each, end = min(begin + each, groups + 1);
    const auto of = [&](int group) {
      return group < groups ? (rows[group + 1] - rows[group] + kRows - 1) / kRows : 0;
    };
    int own = 0;
    for (int group = begin; group < end; ++group) own += of(group);
    int ahead = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_up_sync(~0u, ahead, lanes);
      if (lane >= lanes) ahead += other;
    }
    ahead -= own;
    for (int group = begin; group < end; ++group) {
      units[group] = ahead;
      ahead += of(group);
    }
  }
};

// Launches a kernel whose blocks share all units, with this many blocks per multiprocessor.
template <typename... Params, typename... Args>
void launch_grouped(void (*kernel)(Params...), int blocks, int threads, int shared_bytes,
                    cudaStream_t stream, const Args&... args) {
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "a grouped GEMM's shared memory");
  const int all = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount) * blocks;
  launch_with_pdl(
      "launching a grouped GEMM", kernel,
      LaunchShape{dim3(static_cast<unsigned>(all)), dim3(static_cast<unsigned>(threads)),
                  static_cast<std::size_t>(shared_bytes)},
      stream, args...);
}

// Two adjacent outputs of a row, rounded.
template <typename T>
__device__ __forceinline__ unsigned narrow_pair(float low, float high) {
  return narrow<T>(low).bits | static_cast<unsigned>(narrow<T>(high).bits) << 16;
}

// A gated output, from the sums of gate and up, rounded as the separate GEMM and activation would.
template <typename T>
__device__ __forceinline__ float gated_sum(float gate, float through) {
  const float open = activate<T, Activation::silu>(widen(narrow<T>(gate)));
  return __fmul_rn(open, widen(narrow<T>(through)));
}

}  // namespace nvllm::kernels::cuda
