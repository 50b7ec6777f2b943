// ResidualStream: the hidden states that run through a decoder. Every attention block and every MLP
// block reads them through an RMSNorm and adds its result to them. This file alone decides where
// that norm and that addition happen; layers only call norm_operands() and add_operands().
//
//   mode                        the addition                       the norm
//   one rank                    GEMM's epilogue, in place          prologue of the next GEMM; or
//                                                                  deferred: started by the GEMM
//                                                                  that adds, completed by the next
//   one rank, `out_of_place`    GEMM's epilogue, into `partial`,   prologue of the next GEMM
//                               which then becomes `hidden`
//   several ranks               one collective, when `hidden` is next read, sums `partial` over the
//                               ranks, adds it and applies the norm
//   ... with `overlapped`       begin_reduce_scatter(), begin_all_gather() and read_normed() do the
//                               same beside the work on other rows
//   `unfused_norms`             kernels of their own, for both, after an all-reduce with several
//                               ranks (not after add_reduced())
//
// unfused_norms is for models that norm a block's result before it is added (result_norm) or have
// norms that GEMMs and collectives do not support, and for results that must not depend on the
// number of ranks (Shard::tp_invariant), where blocks leave sums over all ranks (add_reduced()).
// out_of_place is for invariant results: an in-place cuBLASLt GEMM of many rows would add in
// another order. A layer has two blocks, so `hidden` and `partial` end where they were.
#pragma once

#include <optional>

#include "layers/context.h"
#include "layers/parameter.h"

namespace nvllm::layers {

struct ResidualStream {
  TensorView hidden;  // [rows, hidden], dense, the same on all ranks
  TensorView normed;  // [rows, hidden], dense: the sum's norm, or what a deferred norm leaves
  // [rows, hidden], dense: what this rank adds next, or memory for the next `hidden` (with one
  // rank: only with unfused_norms or out_of_place).
  TensorView partial;
  // For deferred norms (kernels::DeferredNorm); data == nullptr: none is deferred.
  TensorView squares{};
  bool unfused_norms = false;
  bool out_of_place = false;     // one rank, without unfused_norms
  bool partial_pending = false;  // `partial` is yet to be summed over the ranks and added
  bool partial_reduced = false;  // unfused_norms: `partial` is already summed over the ranks
  // Norm of the pending result before it is added; nullptr: none.
  const RmsNorm* result_norm = nullptr;
  // [1], only with unfused_norms: factor of the sum after that; data == nullptr: 1.
  TensorView layer_scale{};
  bool deferred = false;  // `normed` and `squares` hold the deferred norm of the sum

  // Set only with several ranks and without unfused_norms. The sum is then up to date only in the
  // rows that this rank owns, until `gathers` completes it (take_gathered_hidden()).
  std::optional<ipc::OverlappedRows> overlapped{};
  ipc::Gathered gathers = ipc::Gathered::norm;  // what begin_all_gather() computes
  // Not nullptr: `partial` is in flight; the norm through which `hidden` is read next.
  const RmsNorm* reduce_scatter_norm = nullptr;

  std::int64_t rows() const { return hidden.shape[0]; }
  DType dtype() const { return hidden.dtype; }
};

// Operands of a column-parallel GEMM that reads the stream through `norm`: x and the prologue.
kernels::GemmOperands norm_operands(ResidualStream& stream, const RmsNorm& norm,
                                    const Context& context);

// Operands of a row-parallel GEMM that adds its result to the stream: x, out, the residual and, if
// the plan defers the norm through which the sum is next read, the epilogue. next: that norm;
// nullptr: unknown. result_norm: norm of the added result, only with unfused_norms; nullptr: none.
kernels::GemmOperands add_operands(ResidualStream& stream, TensorView x,
                                   const kernels::GemmPlan& plan, const RmsNorm* next,
                                   const Context& context, const RmsNorm* result_norm = nullptr);

// With unfused_norms: where a block writes its contribution if that is whole on every rank.
TensorView add_reduced(ResidualStream& stream, const RmsNorm* result_norm = nullptr);

// Runs a norm as a separate kernel: of x, or of x + residual unless residual.data == nullptr. out
// may be x.
void run_norm(TensorView out, TensorView x, const RmsNorm& norm, const Context& context,
              TensorView residual = {});

// For overlapped rows (otherwise a no-op): sends their parts to the ranks that own the rows. next:
// the norm through which the sum is next read.
void begin_reduce_scatter(ResidualStream& stream, const RmsNorm& next, const Context& context);
// Sums up what was sent last and sends the result to all ranks. A no-op if `stream` is nullptr or
// nothing was sent.
void begin_all_gather(ResidualStream* stream, const Context& context);
// Returns the whole sum of overlapped rows, after a begin_all_gather() with Gathered::sum.
TensorView take_gathered_hidden(ResidualStream& stream, const Context& context);

// Returns the sum including anything pending, which changes no later result. (With several ranks
// the collective also computes a norm of the sum; `norm` may be any.)
TensorView complete_hidden(ResidualStream& stream, const RmsNorm& norm, const Context& context);
// Returns the norm of that sum. Later results do not change, except that a norm that was deferred
// is then applied in full.
TensorView read_normed(ResidualStream& stream, const RmsNorm& norm, const Context& context);

// Keeps only these rows of the stream (row_ids: int32, any number, in any order). Their memory
// comes from the scratch memory, outside any frame of this function.
void select_rows(ResidualStream& stream, TensorView row_ids, const Context& context);

}  // namespace nvllm::layers
