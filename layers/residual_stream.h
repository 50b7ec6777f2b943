// ResidualStream: the sum that runs through a decoder, to which every attention block and every MLP
// block adds its part, and from which each reads through an RMSNorm.
//
// With one rank a GEMM adds its result to the sum, and the norm is the prologue of the GEMM that
// reads it, or is deferred: started by the one, ended by the other. With several ranks a GEMM
// leaves this rank's part; when the sum is read next, one collective sums the parts over the ranks,
// adds them and applies the norm. norm_operands() and add_operands() know which; no other function
// asks.
//
// Some models norm what a block makes before it is added (result_norm), or have norms that GEMMs
// and collectives do not know. There (norms_apart) GEMMs leave parts also with one rank, and the
// norms are kernels of their own. So it is with any number of ranks where that must not matter
// (Shard::tp_invariant): there blocks leave what is summed over the ranks already (add_whole()).
//
// With one rank, where results must be invariant, GEMMs add to the sum but not in place
// (`alternates`): a GEMM of many rows by cuBLASLt that does so adds in another order. The sum and
// `part` then change roles with every block that adds, so a layer, which has two, leaves them as
// they were.
//
// Where some rows' sum over the ranks is overlapped with the work on other rows (`overlapped`), it
// goes through three functions: send_part() when a block has left its part, sum_sent() in the
// middle of another block, for other rows, and normed() where the rows are read next.
#pragma once

#include <optional>

#include "layers/context.h"
#include "layers/parameter.h"

namespace nvllm::layers {

struct ResidualStream {
  TensorView sum;     // [rows, hidden], dense, the same on all ranks
  TensorView normed;  // likewise: the sum's norm, or what a deferred norm has of it
  // Likewise: what this rank adds next, or the place of the next sum (one rank: only with
  // norms_apart or `alternates`).
  TensorView part;
  // Of deferred norms (kernels::DeferredNorm); data == nullptr: none is deferred.
  TensorView squares{};
  bool norms_apart = false;
  bool alternates = false;  // of one rank, without norms_apart
  bool pending = false;     // `part` waits to be summed over the ranks and added
  bool summed = false;      // with norms_apart: it is summed already
  // The norm of that sum before it is added; nullptr: none.
  const RmsNorm* result_norm = nullptr;
  // [1], with norms_apart alone: what the sum is multiplied by after that; data == nullptr: 1.
  TensorView factor{};
  bool deferred = false;  // the norm by which the sum is read next is in `normed` and `squares`

  // Set: with several ranks, and never with norms_apart. The sum is then up to date only in rows
  // that this rank owns, until `gathers` makes it whole (take_whole_sum()).
  std::optional<ipc::OverlappedRows> overlapped{};
  ipc::Gathered gathers = ipc::Gathered::norm;  // what sum_sent() makes
  const RmsNorm* sent = nullptr;  // `part` travels, and this norm is what reads it next

  std::int64_t rows() const { return sum.shape[0]; }
  DType dtype() const { return sum.dtype; }
};

// Operands of a column-parallel GEMM that reads the stream through `norm`: x and the prologue.
kernels::GemmOperands norm_operands(ResidualStream& stream, const RmsNorm& norm,
                                    const Context& context);

// Operands of a row-parallel GEMM that adds its result to the stream: x, out, the residual and, if
// the plan defers the norm by which the sum is read next, the epilogue. next: that norm; nullptr:
// not known. result_norm: of what is added, with norms_apart alone; nullptr: none.
kernels::GemmOperands add_operands(ResidualStream& stream, TensorView x,
                                   const kernels::GemmPlan& plan, const RmsNorm* next,
                                   const Context& context, const RmsNorm* result_norm = nullptr);

// With norms_apart: where a block leaves what it adds to the stream if that is whole on every rank.
TensorView add_whole(ResidualStream& stream, const RmsNorm* result_norm = nullptr);

// A norm as a kernel of its own: of x, or with a residual (data == nullptr: none), to which x is
// added, of that sum. out may be x.
void run_norm(TensorView out, TensorView x, const RmsNorm& norm, const Context& context,
              TensorView residual = {});

// Overlapped rows, otherwise nothing is done: their part travels to the ranks that own them. next:
// the norm by which the sum is read next.
void send_part(ResidualStream& stream, const RmsNorm& next, const Context& context);
// What was sent last is summed up, and the result travels to all ranks. nullptr, or nothing was
// sent: nothing is done.
void sum_sent(ResidualStream* stream, const Context& context);
// The whole sum of overlapped rows, behind a sum_sent() with Gathered::sum.
TensorView take_whole_sum(ResidualStream& stream, const Context& context);

// The sum as it is now, with what was pending. No later result changes by it. (With several ranks
// the collective norms the sum, too: by `norm`, which may be any.)
TensorView sum(ResidualStream& stream, const RmsNorm& norm, const Context& context);
// The norm of that. No later result changes by it, but that a norm that was deferred is applied
// whole.
TensorView normed(ResidualStream& stream, const RmsNorm& norm, const Context& context);

// The stream goes on with these rows (int32, any number, in any order), in memory that it takes
// from the scratch memory, outside of any frame of its own.
void select_rows(ResidualStream& stream, TensorView row_ids, const Context& context);

}  // namespace nvllm::layers
