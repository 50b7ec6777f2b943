// Everything between the QKV GEMM and attention in one pass: the norms of q and k, RoPE, and the
// store of k and v into the cache.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Each row of qkv holds heads * head_dim of q, then kv_heads * head_dim of k, then as many of v; or
// q alone, in a layer that reuses another layer's K/V.
//   q and k: RMSNorm over each head, if there are norm weights (with weight_offset as in
//   rmsnorm.h); then, for the first `rotary` elements of the head, with half = rotary / 2,
//     (x[i], x[i + half]) = (x[i] cos[i] - x[i + half] sin[i], x[i + half] cos[i] + x[i] sin[i]),
//     all in float32, rounded once.
//   v, if it is normed: RMSNorm over each head, without weights.
//   q is updated in place; k and v are written to the cache and not changed in qkv. An E4m3 cache
//   stores k and v times 1 / scale, in float32, rounded once (device/e4m3.h).
struct NormRopeStore {
  TensorView qkv;           // [rows, (heads + 2 * kv_heads) * head_dim], dense
  TensorView q_norm;        // [head_dim]; data == nullptr: no norm
  TensorView k_norm;        // [head_dim]; both or neither
  TensorView cos_sin;       // [positions, rotary], float32: the cosines, then the sines
  TensorView positions;     // [rows], int32, each below cos_sin's positions
  TensorView slot_mapping;  // [rows], int64; negative: this row's k and v are not stored
  KvView kv;
  TensorView kv_scales{};  // of an E4m3 cache: kernels/attention/kv_view.h
  std::int64_t heads = 0;  // may be 0: a rank may have none
  float epsilon = 1e-6f;
  float weight_offset = 0;
  bool norms_v = false;
  bool shares_kv = false;  // qkv has no k and v, and k_norm is absent

  // Whether the previously enqueued kernels write nothing that is read here except qkv: everything
  // else may then be read before they have ended. kernels/attention/attention.h defines which
  // kernels that covers.
  bool history_is_visible = false;
};

// qkv and norms are of one type (float32, bfloat16 or float16), the cache of the same or of E4m3;
// head_dim is even and at most kMaxHeadDim, rotary even and at most head_dim; any number of rows,
// including 0; otherwise throws an Error that names the argument.
void norm_rope_store(const NormRopeStore& args, Stream& stream);
void check_norm_rope_store(const NormRopeStore& args);

}  // namespace nvllm::kernels
