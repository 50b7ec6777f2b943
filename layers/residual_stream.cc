#include "layers/residual_stream.h"

#include <utility>

#include "base/check.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/step_input.h"

namespace nvllm::layers {
namespace {

// Whether GEMMs norm the sum that they read and add to it, without kernels in between.
bool gemms_fuse_norms(const ResidualStream& stream, const Context& context) {
  return context.alone() && !stream.unfused_norms;
}

// Norm arguments of the collective that sums the ranks' parts.
kernels::RmsNorm norm_arguments(const ResidualStream& stream, const RmsNorm& norm) {
  return {.out = stream.normed,
          .x = stream.partial,
          .residual = stream.hidden,
          .weight = norm.weight.view,
          .epsilon = norm.epsilon};
}

// Adds what is pending. Returns whether `normed` then holds the norm of the sum.
bool add_pending(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  if (!stream.partial_pending) return false;
  stream.partial_pending = false;
  if (stream.unfused_norms) {
    if (!context.alone() && !stream.partial_reduced) {
      context.communicator->all_reduce(stream.partial, context.stream);
    }
    stream.partial_reduced = false;
    if (stream.result_norm != nullptr) {
      run_norm(stream.partial, stream.partial, *stream.result_norm, context);
    }
    if (stream.layer_scale.data == nullptr) {
      run_norm(stream.normed, stream.partial, norm, context, stream.hidden);
    } else {
      kernels::scaled_sum({.out = stream.hidden,
                           .a = stream.hidden,
                           .b = stream.partial,
                           .factor = stream.layer_scale},
                          context.stream);
      stream.layer_scale = {};
      run_norm(stream.normed, stream.hidden, norm, context);
    }
    return true;
  }
  if (stream.overlapped) {
    NVLLM_CHECK(stream.reduce_scatter_norm == nullptr, "what was sent has not been summed up");
    stream.normed = context.communicator->finish_all_gather(*stream.overlapped, context.stream);
    return true;
  }
  context.communicator->all_reduce_rms_norm(norm_arguments(stream, norm), context.stream);
  return true;
}

}  // namespace

void run_norm(TensorView out, TensorView x, const RmsNorm& norm, const Context& context,
              TensorView residual) {
  kernels::rms_norm({.out = out,
                     .x = x,
                     .residual = residual,
                     .weight = norm.weight.view,
                     .epsilon = norm.epsilon,
                     .weight_offset = norm.weight_offset},
                    context.stream);
}

void begin_reduce_scatter(ResidualStream& stream, const RmsNorm& next, const Context& context) {
  if (!stream.overlapped) return;
  NVLLM_CHECK(stream.partial_pending && !stream.unfused_norms, "no part to send");
  context.communicator->begin_reduce_scatter(*stream.overlapped, stream.partial, context.stream);
  stream.reduce_scatter_norm = &next;
}

void begin_all_gather(ResidualStream* stream, const Context& context) {
  if (stream == nullptr || stream->reduce_scatter_norm == nullptr) return;
  const RmsNorm& norm = *std::exchange(stream->reduce_scatter_norm, nullptr);
  context.communicator->begin_all_gather(*stream->overlapped, norm_arguments(*stream, norm),
                                         stream->gathers, context.stream);
}

TensorView take_gathered_hidden(ResidualStream& stream, const Context& context) {
  NVLLM_CHECK(stream.overlapped && stream.partial_pending && stream.gathers == ipc::Gathered::sum,
              "the sum is not on its way");
  stream.partial_pending = false;
  return context.communicator->finish_all_gather(*stream.overlapped, context.stream);
}

TensorView complete_hidden(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  add_pending(stream, norm, context);
  return stream.hidden;
}

TensorView read_normed(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  stream.deferred = false;
  if (!add_pending(stream, norm, context)) {
    run_norm(stream.normed, stream.hidden, norm, context);
  }
  return stream.normed;
}

kernels::GemmOperands norm_operands(ResidualStream& stream, const RmsNorm& norm,
                                    const Context& context) {
  kernels::GemmOperands operands;
  if (!gemms_fuse_norms(stream, context)) {
    operands.x = read_normed(stream, norm, context);
    return operands;
  }
  operands.x = stream.hidden;
  operands.prologue.norm_weight = norm.weight.view;
  operands.prologue.epsilon = norm.epsilon;
  operands.prologue.prepared = stream.normed;
  if (stream.deferred) operands.prologue.deferred = {stream.normed, stream.squares};
  stream.deferred = false;  // the reader may overwrite `normed`
  return operands;
}

kernels::GemmOperands add_operands(ResidualStream& stream, TensorView x,
                                   const kernels::GemmPlan& plan, const RmsNorm* next,
                                   const Context& context, const RmsNorm* result_norm) {
  NVLLM_CHECK(result_norm == nullptr || stream.unfused_norms, "no place for a result's norm");
  kernels::GemmOperands operands;
  operands.x = x;
  if (gemms_fuse_norms(stream, context)) {
    operands.residual = stream.hidden;
    if (stream.out_of_place) std::swap(stream.hidden, stream.partial);
    operands.out = stream.hidden;
  } else {
    NVLLM_CHECK(!stream.partial_pending, "the part before has not been read");
    operands.out = stream.partial;
    stream.partial_pending = true;
    stream.result_norm = result_norm;
  }
  stream.deferred = plan.defers_next;
  if (stream.deferred) {
    operands.epilogue.norm_weight = next->weight.view;
    operands.epilogue.deferred = {stream.normed, stream.squares};
  }
  return operands;
}

TensorView add_reduced(ResidualStream& stream, const RmsNorm* result_norm) {
  NVLLM_CHECK(stream.unfused_norms && !stream.partial_pending, "the part before has not been read");
  stream.partial_pending = stream.partial_reduced = true;
  stream.result_norm = result_norm;
  return stream.partial;
}

void select_rows(ResidualStream& stream, TensorView row_ids, const Context& context) {
  const auto allocate = [&] {
    return context.scratch.allocate(stream.dtype(), row_ids.shape[0], stream.hidden.shape[1]);
  };
  const TensorView all_sum = stream.hidden, all_part = stream.partial;
  stream.hidden = allocate();
  stream.normed = allocate();
  stream.partial = allocate();
  stream.deferred = false;
  kernels::embedding({.out = stream.hidden, .ids = row_ids, .table = all_sum}, context.stream);
  if (!stream.partial_pending) return;
  kernels::embedding({.out = stream.partial, .ids = row_ids, .table = all_part}, context.stream);
}

}  // namespace nvllm::layers
