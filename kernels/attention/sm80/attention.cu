// Attention on the GPU, for Ampere and later: kernels, their launchers, and the choice among these
// kernels and those of Hopper.
//
// float32 has a kernel of its own (float32_rows.cuh), which serves as a check. With bfloat16 and
// float16, few packed rows per sequence run in the decode kernels (decode.cuh, on Hopper
// ../sm90/decode.cu), more rows in the prefill kernels (prefill.cuh, on Hopper ../sm90/prefill.cu).
// The Hopper kernels decline unsupported heads. Invariant attention runs all rows in the prefill
// kernel, or in a decode kernel with the same bits (../sm90/invariant_decode.cu). Heads are padded
// to 64, 128 or 256; longer ones have their own kernels (hdim512.cu). Each kernel exists for a
// cache of the rows' type and for one of E4m3 (e4m3_rows.cuh).
#include <algorithm>

#include "kernels/attention/backends.h"
#include "kernels/attention/sm80/decode.cuh"
#include "kernels/attention/sm80/float32_rows.cuh"
#include "kernels/attention/sm80/prefill.cuh"
#include "kernels/attention/sm90/entry_points.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kWindow, int kElements>
__global__ void __launch_bounds__(plain::kWarps * 32)
    attention_float32_kernel(const AttentionParams<T> p) {
  const AttentionPart<T, kWindow> part(p, blockIdx.z, blockIdx.y);
  const int packed_row = blockIdx.x * plain::kWarps + threadIdx.y;
  if (packed_row >= part.packed_rows) return;
  plain::Row row = plain::start_row<kElements>(part, packed_row);
  plain::add_tokens(part, packed_row, row);
  plain::write_row(part, packed_row, row);
}

// kElements: max. elements of a head per lane.
template <typename T, int kElements>
void attention_float32(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const long long rows = args.max_query_rows * p.max_group_heads();
  const dim3 blocks(blocks_for(rows, plain::kWarps), p.kv_heads(),
                    static_cast<unsigned>(args.kv_length.shape[0]));
  with_window(args, [&]<bool kWindow>() {
    attention_float32_kernel<T, kWindow, kElements>
        <<<blocks, dim3(32, plain::kWarps), 0, stream>>>(p);
  });
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

template <typename T>
void attention_float32(const Attention& args, cudaStream_t stream) {
  if (args.q.shape[2] <= kMaxCudaHeadDim) {
    attention_float32<T, plain::kUsualElements>(args, stream);
  } else {
    attention_float32<T, kMaxHeadDim / 32>(args, stream);
  }
}

template <typename T, int D, bool kWindow>
__global__ void __launch_bounds__(decode::kWarps<D> * 32)
    decode_kernel(const AttentionParams<T> p) {
  decode::attend<T, D>(AttentionPart<T, kWindow>(p, blockIdx.z, blockIdx.y));
}

template <typename T, bool kWindow>
void attention_decode(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  with_padded_head(p.head_dim, [&]<int D>() {
    decode::launch<D>(decode_kernel<T, D, kWindow>, p, args.max_query_rows, args.kv_length.shape[0],
                      max_tokens_seen(args), stream);
  });
}

// The grid is an upper bound of the blocks of all sequences. Blocks find their rows themselves, so
// lengths may change between replays of a captured graph.
template <typename T, int D, bool kWindow>
__global__ void __launch_bounds__(prefill::kWarps * 32) prefill_kernel(const AttentionParams<T> p) {
  using namespace prefill;
  extern __shared__ __align__(128) unsigned char shared[];
  const RowBlock block =
      find_row_block(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), kRows);
  if (block.sequence < 0) return;
  const AttentionPart<T, kWindow> part(p, block.sequence, blockIdx.y);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned queries = shared_address(shared);
  Rows<T, D> rows(queries, warp * 16, lane, p.score_scale(part.kv_head));
  bool started = false;
  add_tokens<T, D>(part, block.first_row, queries, started, rows);
  write_rows<T, D>(part, block.first_row + warp * 16, rows);
}

template <typename T, bool kWindow>
void attention_prefill(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const dim3 blocks(static_cast<unsigned>(p.max_row_blocks(args.q.shape[0], prefill::kRows)),
                    p.kv_heads());
  with_padded_head(p.head_dim, [&]<int D>() {
    const auto kernel = prefill_kernel<T, D, kWindow>;
    allow_shared_memory(kernel, prefill::kSharedBytes<D>, "preparing attention");
    kernel<<<blocks, prefill::kWarps * 32, prefill::kSharedBytes<D>, stream>>>(p);
    nvllm::cuda::check(cudaGetLastError(), "launching attention");
  });
}

template <typename T, bool kWindow>
void attention_on_tensor_cores(const Attention& args, cudaStream_t stream) {
  const std::int64_t packed_rows = args.max_query_rows * std::min(args.group, args.q.shape[1]);
  if (packed_rows <= decode::kMaxPackedRows && !args.invariant) {
    const bool may_run_on_sm90 = packed_rows <= kSm90DecodeRows && runs_sm90a();
    if (may_run_on_sm90 && attention_decode_sm90<T, kWindow>(args, stream)) return;
    return attention_decode<T, kWindow>(args, stream);
  }
  // An invariant decode step with a cache of E4m3 has the bits of the kernel below.
  const bool on_sm90 = !kIsE4m3<T> || !args.invariant;
  if constexpr (!kIsE4m3<T>) {
    if (args.invariant && attention_invariant_decode_sm90(args, stream)) return;
  }
  if (on_sm90 && attention_prefill_sm90<T, kWindow>(args, stream)) return;
  attention_prefill<T, kWindow>(args, stream);
}

template <typename T>
void attention_on_tensor_cores(const Attention& args, cudaStream_t stream) {
  if (args.q.shape[2] > kMaxCudaHeadDim) return attention_hdim512<T>(args, stream);
  with_window(args, [&]<bool kWindow>() { attention_on_tensor_cores<T, kWindow>(args, stream); });
}

}  // namespace

void attention(const Attention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  const bool of_e4m3 = args.kv.keys.dtype == DType::u8;
  switch (args.q.dtype) {
    case DType::f32:
      return of_e4m3 ? attention_float32<E4m3Cache<float>>(args, native)
                     : attention_float32<float>(args, native);
    case DType::bf16:
      return of_e4m3 ? attention_on_tensor_cores<E4m3Cache<Bf16>>(args, native)
                     : attention_on_tensor_cores<Bf16>(args, native);
    default:
      return of_e4m3 ? attention_on_tensor_cores<E4m3Cache<F16>>(args, native)
                     : attention_on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
