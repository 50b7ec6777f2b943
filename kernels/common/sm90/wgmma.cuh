// Matrix multiplication by a warpgroup's tensor cores (wgmma, sm_90a). It is asynchronous; the
// accumulators are in registers, operand B in shared memory, operand A there or in registers.
//
// Tiles in shared memory have rows of 64 elements, 128 bytes; chunk c of 16 bytes of row r is
// stored at chunk c ^ (r % 8), as bulk tensor copies with a 128-byte swizzle write them. A tile of
// longer rows is a sequence of such tiles. Every tile begins at a multiple of 1024 bytes.
//
// The accumulator layout for 64 rows and N columns: thread t of the warpgroup, in warp w = t / 32
// and lane l = t % 32, has columns 8 j + 2 (l % 4) and the next. d[4 j] and d[4 j + 1] belong to
// row 16 w + l / 4, d[4 j + 2] and d[4 j + 3] to row 16 w + l / 4 + 8.
#pragma once

#include <cstdint>

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The matrix descriptor of an operand in shared memory: its address, in units of 16 bytes, and the
// distances between its core matrices.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(unsigned address, unsigned leading_bytes,
                                                          unsigned stride_bytes) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}

// The descriptor of the same operand `bytes` further on. Addresses are below 2^18, so no carry
// leaves the address field.
__device__ __forceinline__ std::uint64_t advance_descriptor(std::uint64_t factor, unsigned bytes) {
  const auto low = static_cast<unsigned>(factor) + (bytes >> 4);
  return (factor & 0xffffffff00000000) | low;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending groups, the newest ones, are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving or copying registers that wgmma writes across this point.
template <int N>
__device__ __forceinline__ void hold(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// wgmma() adds to d where `adds` is not 0; else it replaces d. It exists for the numbers of columns
// that kernels need. Operands of the assembly are numbered: first d, then a and b, then `adds`.

// clang-format off
#define NVLLM_SUMS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NVLLM_SUMS_20 NVLLM_SUMS_16 ", " \
  "%16, %17, %18, %19"
#define NVLLM_SUMS_24 NVLLM_SUMS_20 ", " \
  "%20, %21, %22, %23"
#define NVLLM_SUMS_32 NVLLM_SUMS_24 ", " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define NVLLM_SUMS_40 NVLLM_SUMS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define NVLLM_SUMS_48 NVLLM_SUMS_40 ", " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define NVLLM_SUMS_56 NVLLM_SUMS_48 ", " \
  "%48, %49, %50, %51, %52, %53, %54, %55"
#define NVLLM_SUMS_64 NVLLM_SUMS_56 ", " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define NVLLM_SUMS_128 NVLLM_SUMS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NVLLM_OUT_FROM(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NVLLM_OUT_16 \
  NVLLM_OUT_FROM(0), NVLLM_OUT_FROM(4), NVLLM_OUT_FROM(8), NVLLM_OUT_FROM(12)
#define NVLLM_OUT_20 NVLLM_OUT_16, NVLLM_OUT_FROM(16)
#define NVLLM_OUT_24 NVLLM_OUT_20, NVLLM_OUT_FROM(20)
#define NVLLM_OUT_32 NVLLM_OUT_24, NVLLM_OUT_FROM(24), NVLLM_OUT_FROM(28)
#define NVLLM_OUT_40 NVLLM_OUT_32, NVLLM_OUT_FROM(32), NVLLM_OUT_FROM(36)
#define NVLLM_OUT_48 NVLLM_OUT_40, NVLLM_OUT_FROM(40), NVLLM_OUT_FROM(44)
#define NVLLM_OUT_56 NVLLM_OUT_48, NVLLM_OUT_FROM(48), NVLLM_OUT_FROM(52)
#define NVLLM_OUT_64 NVLLM_OUT_56, NVLLM_OUT_FROM(56), NVLLM_OUT_FROM(60)
#define NVLLM_OUT_128 NVLLM_OUT_64, \
  NVLLM_OUT_FROM(64), NVLLM_OUT_FROM(68), NVLLM_OUT_FROM(72), NVLLM_OUT_FROM(76), \
  NVLLM_OUT_FROM(80), NVLLM_OUT_FROM(84), NVLLM_OUT_FROM(88), NVLLM_OUT_FROM(92), \
  NVLLM_OUT_FROM(96), NVLLM_OUT_FROM(100), NVLLM_OUT_FROM(104), NVLLM_OUT_FROM(108), \
  NVLLM_OUT_FROM(112), NVLLM_OUT_FROM(116), NVLLM_OUT_FROM(120), NVLLM_OUT_FROM(124)
#define NVLLM_WGMMA(n, type, sums, factors, added) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " added ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, " factors ";\n}\n"
#define NVLLM_WGMMA_OF(n, sums, factors, added, ...) \
  if constexpr (dtype_of<T> == DType::bf16) { \
    asm volatile(NVLLM_WGMMA(#n, "bf16", NVLLM_SUMS_##sums, factors, added) \
                 : NVLLM_OUT_##sums : __VA_ARGS__); \
  } else { \
    asm volatile(NVLLM_WGMMA(#n, "f16", NVLLM_SUMS_##sums, factors, added) \
                 : NVLLM_OUT_##sums : __VA_ARGS__); \
  }

// d (+)= a b^T: a, 64 x 16, and b, n x 16, in shared memory.
#define NVLLM_WGMMA_OF_SHARED(n, sums, a_b, added) \
  template <typename T> \
  __device__ __forceinline__ void wgmma(float (&d)[sums], std::uint64_t a, std::uint64_t b, \
                                        int adds) { \
    NVLLM_WGMMA_OF(n, sums, a_b ", p, 1, 1, 0, 0", added, "l"(a), "l"(b), "r"(adds)) \
  }
NVLLM_WGMMA_OF_SHARED(32, 16, "%16, %17", "%18")
NVLLM_WGMMA_OF_SHARED(40, 20, "%20, %21", "%22")
NVLLM_WGMMA_OF_SHARED(48, 24, "%24, %25", "%26")
NVLLM_WGMMA_OF_SHARED(64, 32, "%32, %33", "%34")
NVLLM_WGMMA_OF_SHARED(80, 40, "%40, %41", "%42")
NVLLM_WGMMA_OF_SHARED(96, 48, "%48, %49", "%50")
NVLLM_WGMMA_OF_SHARED(112, 56, "%56, %57", "%58")
NVLLM_WGMMA_OF_SHARED(128, 64, "%64, %65", "%66")
NVLLM_WGMMA_OF_SHARED(256, 128, "%128, %129", "%130")

// d (+)= a b: a, 64 x 16, in registers as mma has them; b, 16 x n, its rows the tile's rows.
#define NVLLM_WGMMA_OF_REGISTERS(n, sums, a_b, added) \
  template <typename T> \
  __device__ __forceinline__ void wgmma(float (&d)[sums], const unsigned (&a)[4], std::uint64_t b, \
                                        int adds) { \
    NVLLM_WGMMA_OF(n, sums, a_b ", p, 1, 1, 1", added, \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds)) \
  }
NVLLM_WGMMA_OF_REGISTERS(64, 32, "{%32, %33, %34, %35}, %36", "%37")
NVLLM_WGMMA_OF_REGISTERS(128, 64, "{%64, %65, %66, %67}, %68", "%69")

// The same with b, n x 16, as wgmma() of shared memory has it.
#define NVLLM_WGMMA_IN_ROWS(n, sums, a_b, added) \
  template <typename T> \
  __device__ __forceinline__ void wgmma_in_rows(float (&d)[sums], const unsigned (&a)[4], \
                                                std::uint64_t b, int adds) { \
    NVLLM_WGMMA_OF(n, sums, a_b ", p, 1, 1, 0", added, \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds)) \
  }
NVLLM_WGMMA_IN_ROWS(32, 16, "{%16, %17, %18, %19}, %20", "%21")
NVLLM_WGMMA_IN_ROWS(64, 32, "{%32, %33, %34, %35}, %36", "%37")
NVLLM_WGMMA_IN_ROWS(128, 64, "{%64, %65, %66, %67}, %68", "%69")
// d (+)= a b^T: a, 64 x 32, and b, n x 32, of e4m3 in shared memory.
#define NVLLM_WGMMA_E4M3(n, sums, a_b, added) \
  __device__ __forceinline__ void wgmma_e4m3(float (&d)[sums], std::uint64_t a, std::uint64_t b, \
                                             int adds) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " added ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 " \
                 "{" NVLLM_SUMS_##sums "}, " a_b ", p, 1, 1;\n}\n" \
                 : NVLLM_OUT_##sums : "l"(a), "l"(b), "r"(adds)); \
  }
NVLLM_WGMMA_E4M3(32, 16, "%16, %17", "%18")
NVLLM_WGMMA_E4M3(64, 32, "%32, %33", "%34")
NVLLM_WGMMA_E4M3(128, 64, "%64, %65", "%66")
// clang-format on

#undef NVLLM_WGMMA_E4M3
#undef NVLLM_WGMMA_IN_ROWS
#undef NVLLM_WGMMA_OF_REGISTERS
#undef NVLLM_WGMMA_OF_SHARED
#undef NVLLM_WGMMA_OF
#undef NVLLM_WGMMA
#undef NVLLM_OUT_128
#undef NVLLM_OUT_64
#undef NVLLM_OUT_56
#undef NVLLM_OUT_48
#undef NVLLM_OUT_40
#undef NVLLM_OUT_32
#undef NVLLM_OUT_24
#undef NVLLM_OUT_20
#undef NVLLM_OUT_16
#undef NVLLM_OUT_FROM
#undef NVLLM_SUMS_128
#undef NVLLM_SUMS_64
#undef NVLLM_SUMS_56
#undef NVLLM_SUMS_48
#undef NVLLM_SUMS_40
#undef NVLLM_SUMS_32
#undef NVLLM_SUMS_24
#undef NVLLM_SUMS_20
#undef NVLLM_SUMS_16

#endif

}  // namespace nvllm::kernels::cuda
