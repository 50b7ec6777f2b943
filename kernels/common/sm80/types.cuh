// Element types on the GPU: conversions that round exactly as device/dtype.h does, vectors of 16
// bytes, the widest load and store, and asynchronous copies of the same size.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/dtype.h"

namespace nvllm::kernels {

__device__ __forceinline__ float widen(float value) {
  return value;
}

__device__ __forceinline__ float widen(Bf16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

__device__ __forceinline__ float widen(F16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

// Rounds to nearest, ties to even.
template <typename T>
__device__ __forceinline__ T narrow(float value);

template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}

template <>
__device__ __forceinline__ Bf16 narrow<Bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}

template <>
__device__ __forceinline__ F16 narrow<F16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

// 16 bytes of elements, kept packed: four registers. widen() and narrow() below give and take
// floats.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kElements = 16 / sizeof(T);
  unsigned word[4];
};

// The vector's elements as floats.
template <typename T>
struct Floats {
  float element[Vector<T>::kElements];
};

template <typename T>
__device__ __forceinline__ Floats<T> widen(const Vector<T>& vector) {
  Floats<T> floats;
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    if constexpr (sizeof(T) == 4) {
      floats.element[i] = __uint_as_float(vector.word[i]);
    } else {
      const unsigned word = vector.word[i / 2];
      const auto bits = static_cast<unsigned short>(i % 2 == 0 ? word : word >> 16);
      floats.element[i] = widen(T{bits});
    }
  }
  return floats;
}

template <typename T>
__device__ __forceinline__ Vector<T> narrow(const Floats<T>& floats) {
  Vector<T> vector;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (sizeof(T) == 4) {
      vector.word[w] = __float_as_uint(floats.element[w]);
    } else {
      const unsigned low = narrow<T>(floats.element[2 * w]).bits;
      const unsigned high = narrow<T>(floats.element[2 * w + 1]).bits;
      vector.word[w] = low | high << 16;
    }
  }
  return vector;
}

// Element by element, in float32, rounded once.
template <typename T>
__device__ __forceinline__ Vector<T> add(const Vector<T>& a, const Vector<T>& b) {
  Floats<T> sum = widen(a);
  const Floats<T> more = widen(b);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    sum.element[i] = __fadd_rn(sum.element[i], more.element[i]);
  }
  return narrow(sum);
}

// `address` is a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ Vector<T> load_vector(const T* address) {
  return *reinterpret_cast<const Vector<T>*>(address);
}

// A load of data that will not be reused soon: it does not evict from the L1 cache.
template <typename T>
__device__ __forceinline__ Vector<T> load_vector_once(const T* address) {
  Vector<T> vector;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.word[0]), "=r"(vector.word[1]), "=r"(vector.word[2]),
                 "=r"(vector.word[3])
               : "l"(address));
  return vector;
}

template <typename T>
__device__ __forceinline__ void store_vector(T* address, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(address) = vector;
}

// The first `count` elements (any number; at most kElements are taken), one by one, at any
// alignment. The others are zero.
template <typename T>
__device__ __forceinline__ Vector<T> load_elements(const T* address, int count) {
  Floats<T> floats;
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    floats.element[i] = i < count ? widen(address[i]) : 0.0f;
  }
  return narrow(floats);
}

template <typename T>
__device__ __forceinline__ void store_elements(T* address, const Vector<T>& vector, int count) {
  const Floats<T> floats = widen(vector);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    if (i < count) address[i] = narrow<T>(floats.element[i]);
  }
}

namespace cuda {

// Copies 16 bytes into shared memory (cp.async, Ampere and later). If `valid` is false it reads
// nothing and writes zeros.
__device__ __forceinline__ void copy_chunk(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the newest kPending groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cuda
}  // namespace nvllm::kernels
