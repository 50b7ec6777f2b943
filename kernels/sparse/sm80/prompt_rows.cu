// Dequantizes keys of E4m3 on the GPU: a thread has 16 adjacent ones.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256, kOfThread = 16;

struct Params {
  const E4m3* keys;
  const int* table;     // nullptr: the sequence is one block
  const float* scales;  // nullptr: all are 1
  long long block_stride, token_stride, head_stride;
  long long items;
  int block_size, kv_heads, of_head;  // of_head: items of a head

  explicit Params(const DequantizeKeys& args)
      : keys(args.kv.keys.as<E4m3>()),
        table(args.kv.block_table.as<int>()),
        scales(args.kv_scales.as<float>()),
        block_stride(args.kv.keys.stride[0]),
        token_stride(args.kv.keys.stride[1]),
        head_stride(args.kv.keys.stride[2]),
        items(args.tokens * args.kv.kv_heads() * args.kv.head_dim() / kOfThread),
        block_size(static_cast<int>(args.kv.block_size())),
        kv_heads(static_cast<int>(args.kv.kv_heads())),
        of_head(static_cast<int>(args.kv.head_dim() / kOfThread)) {}
};

template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_keys_kernel(T* out, const Params p) {
  pdl_begin();
  const long long item = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= p.items) return;
  const int within = static_cast<int>(item % p.of_head);
  const long long head_of_token = item / p.of_head;
  const int head = static_cast<int>(head_of_token % p.kv_heads);
  const int token = static_cast<int>(head_of_token / p.kv_heads);
  const long long block = p.table == nullptr ? 0 : p.table[token / p.block_size];
  const E4m3* const from = p.keys + block * p.block_stride + token % p.block_size * p.token_stride +
                           head * p.head_stride + within * kOfThread;
  const uint4 bytes = *reinterpret_cast<const uint4*>(from);
  const unsigned words[] = {bytes.x, bytes.y, bytes.z, bytes.w};
  const float scale = p.scales == nullptr ? 1.0f : p.scales[head];
  constexpr int kElements = Vector<T>::kElements;
#pragma unroll
  for (int first = 0; first < kOfThread; first += kElements) {
    Floats<T> floats;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const unsigned byte = words[(first + i) / 4] >> (8 * ((first + i) % 4)) & 255;
      floats.element[i] = widen(E4m3{static_cast<std::uint8_t>(byte)}) * scale;
    }
    store_vector(out + item * kOfThread + first, narrow(floats));
  }
}

}  // namespace

void dequantize_keys(const DequantizeKeys& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const Params p(args);
    launch_with_pdl("launching dequantize_keys", dequantize_keys_kernel<T>,
                    blocks_for(p.items, kThreads), kThreads, nvllm::cuda::native(stream),
                    args.out.as<T>(), p);
  });
}

}  // namespace nvllm::kernels::cuda
