#include "layers/residual_stream.h"

#include <utility>

#include "base/check.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/scaled_sum.h"
#include "kernels/pointwise/step_input.h"

namespace nvllm::layers {
namespace {

// Whether GEMMs norm the sum that they read and add to it, without kernels in between.
bool gemms_add(const ResidualStream& stream, const Context& context) {
  return context.alone() && !stream.norms_apart;
}

// Norm arguments of the collective that sums the ranks' parts.
kernels::RmsNorm norm_arguments(const ResidualStream& stream, const RmsNorm& norm) {
  return {.out = stream.normed,
          .x = stream.part,
          .residual = stream.sum,
          .weight = norm.weight.view,
          .epsilon = norm.epsilon};
}

// Adds what is pending. Returns whether `normed` then holds the norm of the sum.
bool add_pending(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  if (!stream.pending) return false;
  stream.pending = false;
  if (stream.norms_apart) {
    if (!context.alone() && !stream.summed) {
      context.communicator->all_reduce(stream.part, context.stream);
    }
    stream.summed = false;
    if (stream.result_norm != nullptr) {
      run_norm(stream.part, stream.part, *stream.result_norm, context);
    }
    if (stream.factor.data == nullptr) {
      run_norm(stream.normed, stream.part, norm, context, stream.sum);
    } else {
      kernels::scaled_sum(
          {.out = stream.sum, .a = stream.sum, .b = stream.part, .factor = stream.factor},
          context.stream);
      stream.factor = {};
      run_norm(stream.normed, stream.sum, norm, context);
    }
    return true;
  }
  if (stream.overlapped) {
    NVLLM_CHECK(stream.sent == nullptr, "what was sent has not been summed up");
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

void send_part(ResidualStream& stream, const RmsNorm& next, const Context& context) {
  if (!stream.overlapped) return;
  NVLLM_CHECK(stream.pending && !stream.norms_apart, "no part to send");
  context.communicator->begin_reduce_scatter(*stream.overlapped, stream.part, context.stream);
  stream.sent = &next;
}

void sum_sent(ResidualStream* stream, const Context& context) {
  if (stream == nullptr || stream->sent == nullptr) return;
  const RmsNorm& norm = *std::exchange(stream->sent, nullptr);
  context.communicator->begin_all_gather(*stream->overlapped, norm_arguments(*stream, norm),
                                         stream->gathers, context.stream);
}

TensorView take_whole_sum(ResidualStream& stream, const Context& context) {
  NVLLM_CHECK(stream.overlapped && stream.pending && stream.gathers == ipc::Gathered::sum,
              "the sum is not on its way");
  stream.pending = false;
  return context.communicator->finish_all_gather(*stream.overlapped, context.stream);
}

TensorView sum(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  add_pending(stream, norm, context);
  return stream.sum;
}

TensorView normed(ResidualStream& stream, const RmsNorm& norm, const Context& context) {
  stream.deferred = false;
  if (!add_pending(stream, norm, context)) {
    run_norm(stream.normed, stream.sum, norm, context);
  }
  return stream.normed;
}

kernels::GemmOperands norm_operands(ResidualStream& stream, const RmsNorm& norm,
                                    const Context& context) {
  kernels::GemmOperands operands;
  if (!gemms_add(stream, context)) {
    operands.x = normed(stream, norm, context);
    return operands;
  }
  operands.x = stream.sum;
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
  NVLLM_CHECK(result_norm == nullptr || stream.norms_apart, "no place for a result's norm");
  kernels::GemmOperands operands;
  operands.x = x;
  if (gemms_add(stream, context)) {
    operands.residual = stream.sum;
    if (stream.alternates) std::swap(stream.sum, stream.part);
    operands.out = stream.sum;
  } else {
    NVLLM_CHECK(!stream.pending, "the part before has not been read");
    operands.out = stream.part;
    stream.pending = true;
    stream.result_norm = result_norm;
  }
  stream.deferred = plan.defers_next;
  if (stream.deferred) {
    operands.epilogue.norm_weight = next->weight.view;
    operands.epilogue.deferred = {stream.normed, stream.squares};
  }
  return operands;
}

TensorView add_whole(ResidualStream& stream, const RmsNorm* result_norm) {
  NVLLM_CHECK(stream.norms_apart && !stream.pending, "the part before has not been read");
  stream.pending = stream.summed = true;
  stream.result_norm = result_norm;
  return stream.part;
}

void select_rows(ResidualStream& stream, TensorView row_ids, const Context& context) {
  const auto allocate = [&] {
    return context.scratch.allocate(stream.dtype(), row_ids.shape[0], stream.sum.shape[1]);
  };
  const TensorView all_sum = stream.sum, all_part = stream.part;
  stream.sum = allocate();
  stream.normed = allocate();
  stream.part = allocate();
  stream.deferred = false;
  kernels::embedding({.out = stream.sum, .ids = row_ids, .table = all_sum}, context.stream);
  if (!stream.pending) return;
  kernels::embedding({.out = stream.part, .ids = row_ids, .table = all_part}, context.stream);
}

}  // namespace nvllm::layers
