// What happens between the QKV GEMM and attention, in one pass: the norms of q and k, the rotation
// by position, and the store of k and v into the cache.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_scales.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Each row of qkv holds heads * head_dim of q, then kv_heads * head_dim of k, then as many of v;
// or, where a layer reads the keys and values that another one has stored, q alone.
//   q and k: RMSNorm over each head, where there are norm weights (with weight_offset as in
//   rmsnorm.h); then, of the first `rotary` elements of the head, with half = rotary / 2,
//     (x[i], x[i + half]) = (x[i] cos[i] - x[i + half] sin[i], x[i + half] cos[i] + x[i] sin[i]),
//     all in float32, rounded once.
//   v, where it is normed: RMSNorm over each head, without weights.
//   q is changed in place; k and v go to the cache and stay as they are in qkv. A cache of E4m3
//   gets k and v times 1 / scale, in float32, rounded once (device/e4m3.h).
struct NormRopeStore {
  TensorView qkv;        // [rows, (heads + 2 * kv_heads) * head_dim], dense
  TensorView q_norm;     // [head_dim]; data == nullptr: no norm
  TensorView k_norm;     // [head_dim]; both or neither
  TensorView cos_sin;    // [positions, rotary], float32: the cosines, then the sines
  TensorView positions;  // [rows], int32, each below cos_sin's positions
  TensorView slots;      // [rows], int64; negative: this row's k and v are not stored
  KvView kv;
  TensorView kv_scales{};  // of a cache of E4m3: kernels/attention/kv_scales.h
  std::int64_t heads = 0;  // also 0: a rank may have none
  float epsilon = 1e-6f;
  float weight_offset = 0;
  bool norms_v = false;
  bool q_alone = false;  // there are no k and v, and k_norm is not there

  // Whether of all that is read here what was enqueued just before writes nothing but qkv: then
  // everything else may be read before it has ended. What counts is told in
  // kernels/attention/attention.h.
  bool only_rows_are_new = false;
};

// Enqueues it. qkv and norms of one type (float32, bfloat16 or float16), the cache of the same or
// of E4m3, head_dim even, at most kMaxHeadDim, rotary even, at most head_dim; any number of rows,
// also 0; otherwise an Error that names the argument.
void norm_rope_store(const NormRopeStore& args, Stream& stream);
void check_norm_rope_store(const NormRopeStore& args);

}  // namespace nvllm::kernels
