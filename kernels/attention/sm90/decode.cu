// Decode attention (few query rows per sequence) on Hopper: the kernel, whose work is that of
// decode.cuh, its launch configuration and its tensor maps.
//
// Rows of bfloat16 or float16, a cache of the same type or of E4m3, head_dim 64, 128 or 256 (this
// with keys and values that tensor maps can describe), up to 16 packed rows per sequence and KV
// head.
#include <algorithm>
#include <array>

#include "kernels/attention/sm90/decode.cuh"
#include "kernels/attention/sm90/entry_points.h"
#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda {
namespace decode_sm90 {
namespace {

// The stages of this many warps take almost all shared memory of a multiprocessor; they belong to
// one block or to two.
template <int D>
constexpr int kManyWarps = D <= 128 ? 8 : 6;
constexpr int kMinBlockTokens = 64;  // combining costs about as much
constexpr int kPortableBlocks = 8;   // of a cluster: the portable maximum
// Registers of a thread: few enough that a block of the preceding or following kernel fits on the
// same multiprocessor. Not with heads of 256, whose rows take more and would spill.
template <int D>
constexpr int kMaxRegisters = D <= 128 ? 168 : 255;

template <typename T, int D, int kWarps, Copy kCopy, bool kWindow>
__global__ void __maxnreg__(kMaxRegisters<D>)
    decode_kernel_sm90(const AttentionParams<T> p, const __grid_constant__ CUtensorMap keys,
                       const __grid_constant__ CUtensorMap values, bool history_is_visible) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char memory[];
  attend<D, kWarps, kCopy, kWindow>(p, keys, values, history_is_visible, memory);
#endif
}

// The tensor map of E4m3 keys or values, in boxes of kBoxTokens tokens of a head. Heads of 256 are
// two rows of 128 bytes of a tile.
template <int D>
CUtensorMap describe_e4m3(const TensorView& cache) {
  constexpr int kRow = std::min(D, 128);
  const auto size = [&](int axis) { return static_cast<cuuint64_t>(cache.shape[axis]); };
  const auto stride = [&](int axis) { return static_cast<cuuint64_t>(cache.stride[axis]); };
  const cuuint64_t shape[]{kRow, size(1), D / kRow, size(2), size(0)};
  const cuuint64_t strides[]{stride(1), kRow, stride(2), stride(0)};
  const cuuint32_t box[]{kRow, kBoxTokens, D / kRow, 1, 1}, steps[]{1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, cache.data, shape, strides, box,
                           steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           D == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail("attention: describing E4m3 to the GPU: CUresult ", result);
  return map;
}

// The tensor map of a layer's keys or values: boxes of kBoxTokens tokens of a head (BoxedRows). L2
// promotion is off: with promotion to 256 bytes 5% more is read.
template <typename T, int D>
CUtensorMap describe(const TensorView& cache) {
  if constexpr (kIsE4m3<T>) return describe_e4m3<D>(cache);
  constexpr int kHalf = sm90::kHalf;
  const std::array<Dimension, 5> dimensions{{{kHalf, 1, kHalf},
                                             {cache.shape[1], cache.stride[1], kBoxTokens},
                                             {D / kHalf, kHalf, D / kHalf},
                                             {cache.shape[2], cache.stride[2], 1},
                                             {cache.shape[0], cache.stride[0], 1}}};
  return describe_tensor("attention", cache.dtype, cache.data, dimensions,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

struct Plan {
  bool many_warps;  // in a block: all of a multiprocessor, not half of them
  int blocks;       // of a cluster
};

// The configuration for `units` pairs of a sequence and a KV head, by bounds that hold for all
// replays of a graph. With few units, all blocks run at once, one per multiprocessor, and clusters
// are as large as possible; clusters of four and more blocks cannot fill the GPU, since each lies
// within one GPC, and GPCs have unequal sizes. With many units, two blocks share a multiprocessor
// if that leaves few idle at the end; with E4m3 always, since its tiles arrive so fast that the
// start and end of units, which then overlap, are significant. If many warps could not have one
// E4m3 tile each, blocks have few.
Plan plan_of(long long units, long long max_tokens, int many_warps, bool of_e4m3) {
  const long long processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const long long pairs = 2 * processors;
  const bool filled = units > processors && (of_e4m3 || (units - 1) % pairs >= pairs * 9 / 10);
  Plan plan{!filled, 1};
  while (plan.blocks < kPortableBlocks) {
    const int blocks = 2 * plan.blocks;
    const long long capacity = blocks < 4 ? processors : processors * 9 / 10;
    if (units * blocks > capacity || max_tokens < blocks * kMinBlockTokens) break;
    plan.blocks = blocks;
  }
  if (units * kMaxBlocks <= processors / 2 && max_tokens >= 2 * kMaxBlocks * kMinBlockTokens) {
    plan.blocks = kMaxBlocks;
  }
  constexpr int kTile = kTokens<E4m3Cache<Bf16>>;
  if (of_e4m3 && max_tokens < plan.blocks * many_warps * kTile) plan.many_warps = false;
  return plan;
}

// Whether tensor maps can describe a cache: strides are multiples of 16 bytes.
template <typename T>
bool can_be_described(const TensorView& cache) {
  const auto& stride = cache.stride;
  const bool of_e4m3 = kIsE4m3<T>;
  return sm90::can_be_described(cache) &&
         (!of_e4m3 || (stride[0] % 16 == 0 && stride[1] % 16 == 0 && stride[2] % 16 == 0));
}

// Whether all clusters of this configuration can run at once.
template <typename Kernel>
bool runs_at_once(Kernel kernel, const cudaLaunchConfig_t& config) {
  int clusters = 0;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
      "preparing attention");
  nvllm::cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                     "preparing attention");
  return clusters >= static_cast<int>(config.gridDim.y * config.gridDim.z);
}

template <int D, int kWarps, Copy kCopy, bool kWindow, typename T>
void launch(const Attention& args, const AttentionParams<T>& p, int blocks, cudaStream_t stream) {
  const auto kernel = decode_kernel_sm90<T, D, kWarps, kCopy, kWindow>;
  const int bytes = SharedLayout<T, D, kWarps>::bytes(args.max_query_rows * p.max_group_heads());
  allow_shared_memory(kernel, bytes, "preparing attention");
  const auto map_of = [&](const TensorView& cache) {
    return kCopy == Copy::boxes ? describe<T, D>(cache) : CUtensorMap{};
  };
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, p.kv_heads(), p.sequences);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  const auto cluster_of = [&](int count) {
    config.gridDim.x = attributes[1].val.clusterDim.x = count;
  };
  cluster_of(blocks);
  if (blocks > kPortableBlocks && !runs_at_once(kernel, config)) cluster_of(kPortableBlocks);
  const bool history_is_visible = args.history_is_visible && p.visible == nullptr;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, map_of(args.kv.keys),
                                        map_of(args.kv.values), history_is_visible),
                     "launching attention");
}

template <int D, typename T, bool kWindow>
bool launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const bool boxes = (p.block_table == nullptr || p.block_size % kBoxTokens == 0) &&
                     can_be_described<T>(args.kv.keys) && can_be_described<T>(args.kv.values);
  constexpr bool kBoxesAlone = D > 128;  // compiling the other kernels, too, takes too long
  if (kBoxesAlone && !boxes) return false;
  const Plan plan = plan_of(static_cast<long long>(p.sequences) * p.kv_heads(),
                            max_tokens_seen(args), kManyWarps<D>, kIsE4m3<T>);
  const auto with_warps = [&]<int kWarps>() {
    if (boxes) return launch<D, kWarps, Copy::boxes, kWindow>(args, p, plan.blocks, stream);
    if constexpr (!kBoxesAlone) {
      launch<D, kWarps, Copy::chunks, kWindow>(args, p, plan.blocks, stream);
    }
  };
  plan.many_warps ? with_warps.template operator()<kManyWarps<D>>()
                  : with_warps.template operator()<kManyWarps<D> / 2>();
  return true;
}

}  // namespace
}  // namespace decode_sm90

template <typename T, bool kWindow>
bool attention_decode_sm90(const Attention& args, cudaStream_t stream) {
  switch (args.q.shape[2]) {
    case 64: return decode_sm90::launch<64, T, kWindow>(args, stream);
    case 128: return decode_sm90::launch<128, T, kWindow>(args, stream);
    case 256: return decode_sm90::launch<256, T, kWindow>(args, stream);
    default: return false;
  }
}

template bool attention_decode_sm90<Bf16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<Bf16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<F16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<F16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<E4m3Cache<Bf16>, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<E4m3Cache<Bf16>, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<E4m3Cache<F16>, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<E4m3Cache<F16>, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
