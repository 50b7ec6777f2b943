// StateRows on the GPU, and a function for decays.
#pragma once

#include "kernels/linear_attention/linear_attention.h"

namespace nvllm::kernels::cuda {

struct Sequences {
  const int* query_start;
  const int* kv_length;
  const int* slots;
  int count;

  __device__ __forceinline__ int begin(int sequence) const { return query_start[sequence]; }
  __device__ __forceinline__ bool starts(int sequence) const {
    return kv_length[sequence] == begin(sequence + 1) - begin(sequence);
  }

  // The sequence that contains the row. In a decode step it has the same index.
  __device__ __forceinline__ int of_row(long long row) const {
    int low = row < count ? static_cast<int>(row) : count - 1;
    if (begin(low) <= row && row < begin(low + 1)) return low;
    low = 0;
    for (int high = count; low < high;) {
      const int middle = (low + high) / 2;
      if (begin(middle + 1) <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// log(1 + e^x), used in decays.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

inline Sequences sequences_of(const StateRows& rows) {
  return {rows.query_start.as<const int>(), rows.kv_length.as<const int>(),
          rows.slots.as<const int>(), static_cast<int>(rows.sequences())};
}

}  // namespace nvllm::kernels::cuda
