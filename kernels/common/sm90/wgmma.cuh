// Matrix multiplication by a warpgroup's tensor cores (wgmma, sm_90a): asynchronous, the sum in
// registers, the right factor in shared memory, the left one there or in registers.
//
// Tiles in shared memory have rows of 64 elements, 128 bytes; chunk c of 16 bytes of row r lies at
// chunk c ^ (r % 8), as bulk tensor copies with a swizzle of 128 bytes write them. A tile of longer
// rows is several such tiles, one behind the other. Every tile begins at a multiple of 1024 bytes.
//
// Who has what of a sum of 64 rows and N columns: thread t of the warpgroup, in warp w = t / 32 and
// lane l = t % 32, has of columns 8 j + 2 (l % 4) and the next: d[4 j], d[4 j + 1] of row 16 w + l
// / 4, and d[4 j + 2], d[4 j + 3] of row 16 w + l / 4 + 8.
#pragma once

#include <cstdint>

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// How wgmma finds a factor: its address, in units of 16 bytes, and the distances between its
// pieces.
__device__ __forceinline__ std::uint64_t wgmma_factor(unsigned address, unsigned leading_bytes,
                                                      unsigned stride_bytes) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}

// The same factor so many bytes further on; addresses are below 2^18, so that no carry leaves their
// part.
__device__ __forceinline__ std::uint64_t wgmma_factor_behind(std::uint64_t factor, unsigned bytes) {
  const auto low = static_cast<unsigned>(factor) + (bytes >> 4);
  return (factor & 0xffffffff00000000) | low;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending of the newest groups are not done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving or copying registers that wgmma writes to, across this point.
template <int N>
__device__ __forceinline__ void hold(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// What follows adds to d where `adds` is not 0; else it replaces d. It is made for as many columns
// as somebody needs. Operands have numbers: first the sums, then the factors, then `adds`.

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
#define NVLLM_OUT_16 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define NVLLM_OUT_20 NVLLM_OUT_16, \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define NVLLM_OUT_24 NVLLM_OUT_20, \
  "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define NVLLM_OUT_32 NVLLM_OUT_24, \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define NVLLM_OUT_40 NVLLM_OUT_32, \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define NVLLM_OUT_48 NVLLM_OUT_40, \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define NVLLM_OUT_56 NVLLM_OUT_48, \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define NVLLM_OUT_64 NVLLM_OUT_56, \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define NVLLM_OUT_128 NVLLM_OUT_64, \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
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
  __device__ __forceinline__ void wgmma(float (&d)[sums], std::uint64_t a, std::uint64_t b, int adds) { \
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
  __device__ __forceinline__ void wgmma(float (&d)[sums], const unsigned (&a)[4], std::uint64_t b, int adds) { \
    NVLLM_WGMMA_OF(n, sums, a_b ", p, 1, 1, 1", added, \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds)) \
  }
NVLLM_WGMMA_OF_REGISTERS(64, 32, "{%32, %33, %34, %35}, %36", "%37")
NVLLM_WGMMA_OF_REGISTERS(128, 64, "{%64, %65, %66, %67}, %68", "%69")
// clang-format on

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
