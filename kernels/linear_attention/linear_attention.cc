// The checks of both operations, and the choice of a backend.
#include "kernels/linear_attention/linear_attention.h"

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/linear_attention/backends.h"

namespace nvllm::kernels {
namespace {

// [rows, columns], whose rows may lie apart.
void require_rows(const TensorView& tensor, const char* name, DType dtype, std::int64_t rows,
                  std::int64_t columns, const Arguments& check) {
  check.require(tensor, name, dtype, {rows, columns});
  check.require_memory(tensor, name);
  if (tensor.stride[1] == 1 || columns < 2) return;
  fail(check.operation(), ": ", name, " is ", tensor.describe(), "; its rows must be dense");
}

void check_state_rows(const StateRows& rows, const Arguments& check) {
  const std::int64_t sequences = rows.sequences();
  check.require_dense(rows.slots, "slots", DType::i32, {sequences});
  check.require_dense(rows.query_start, "query_start", DType::i32, {sequences + 1});
  check.require_dense(rows.kv_length, "kv_length", DType::i32, {sequences});
}

}  // namespace

void check_causal_conv(const CausalConv& args) {
  constexpr Arguments check("causal_conv");
  check.require_floats(args.out, "out", 2, "[rows, channels]");
  check.require_dense(args.out, "out");
  const std::int64_t rows = args.out.shape[0], channels = args.out.shape[1];
  const DType dtype = args.out.dtype;
  const std::int64_t width = args.weight.rank == 2 ? args.weight.shape[1] : 0;
  if (width < 2 || width > kMaxConvWidth) {
    fail("causal_conv: weight is ", args.weight.describe(),
         "; it must be [channels, width], with a width of 2 to ", kMaxConvWidth);
  }
  require_rows(args.x, "x", dtype, rows, channels, check);
  check.require_dense(args.weight, "weight", dtype, {channels, width});
  check.require_dense(args.state, "state", dtype, {args.state.shape[0], width - 1, channels});
  check_state_rows(args.rows, check);
}

void causal_conv(const CausalConv& args, Stream& stream) {
  check_causal_conv(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, causal_conv(args, stream));
}

void check_gated_delta_rule(const GatedDeltaRule& args) {
  constexpr Arguments check("gated_delta_rule");
  check.require_floats(args.out, "out", 2, "[rows, value_heads * dv]");
  check.require_dense(args.out, "out");
  if (args.state.rank != 4) {
    fail("gated_delta_rule: state is ", args.state.describe(),
         "; it must be [slots, value_heads, dk, dv]");
  }
  const std::int64_t heads = args.value_heads(), dk = args.dk(), dv = args.dv();
  const auto fits = [](std::int64_t dim) { return dim > 0 && dim % 8 == 0 && dim <= kMaxStateDim; };
  if (!fits(dk) || !fits(dv)) {
    fail("gated_delta_rule: state is ", args.state.describe(),
         "; dk and dv must be multiples of 8, at most ", kMaxStateDim);
  }
  if (heads > 0 ? args.key_heads < 1 || heads % args.key_heads != 0 : args.key_heads != 0) {
    fail("gated_delta_rule: key_heads is ", args.key_heads, "; it must divide the ", heads,
         " value heads");
  }
  const std::int64_t rows = args.out.shape[0];
  const DType dtype = args.out.dtype;
  check.require_dense(args.out, "out", dtype, {rows, heads * dv});
  check.require_dense(args.state, "state", DType::f32, {args.state.shape[0], heads, dk, dv});
  check.require_dense(args.qkv, "qkv", dtype, {rows, 2 * args.key_heads * dk + heads * dv});
  require_rows(args.z, "z", dtype, rows, heads * dv, check);
  check.require_dense(args.ba, "ba", DType::f32, {rows, 2 * heads});
  check.require_dense(args.a_log, "a_log", DType::f32, {heads});
  check.require_dense(args.dt_bias, "dt_bias", DType::f32, {heads});
  check.require_dense(args.norm, "norm", DType::f32, {dv});
  check_state_rows(args.rows, check);
  const std::int64_t bytes = delta_chunk_bytes(rows, args.rows.sequences(), heads);
  if (args.chunks.data != nullptr &&
      (!args.chunks.aligned(16) || static_cast<std::int64_t>(args.chunks.bytes()) < bytes)) {
    fail("gated_delta_rule: chunks is ", args.chunks.describe(), "; it must have ", bytes,
         " bytes at a multiple of 16");
  }
}

void gated_delta_rule(const GatedDeltaRule& args, Stream& stream) {
  check_gated_delta_rule(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, gated_delta_rule(args, stream));
}

}  // namespace nvllm::kernels
