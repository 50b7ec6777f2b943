#include "layers/residual.h"

#include "base/check.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/step_input.h"

namespace nvllm::layers {

bool ResidualStream::settle(const RmsNorm& norm) {
  if (!pending_) return false;
  pending_ = false;
  context_.communicator->all_reduce_rms_norm({.out = normed_,
                                              .x = part_,
                                              .residual = sum_,
                                              .weight = norm.weight.view,
                                              .epsilon = norm.epsilon},
                                             context_.stream);
  return true;
}

TensorView ResidualStream::sum(const RmsNorm& next) {
  settle(next);
  return sum_;
}

TensorView ResidualStream::normed(const RmsNorm& norm) {
  begun_ = nullptr;
  if (!settle(norm)) {
    kernels::rms_norm({.out = normed_,
                       .x = sum_,
                       .residual = {},
                       .weight = norm.weight.view,
                       .epsilon = norm.epsilon},
                      context_.stream);
  }
  return normed_;
}

Input ResidualStream::input(const RmsNorm& norm) {
  if (!context_.alone()) return {.x = normed(norm)};
  Input input{.x = sum_,
              .before = kernels::Linear::Before::rms_norm,
              .norm_weight = norm.weight.view,
              .epsilon = norm.epsilon,
              .scratch = normed_};
  if (begun_ == &norm) input.begun = {.weighted = normed_, .squares = squares_};
  begun_ = nullptr;  // who reads it may need normed_ otherwise
  return input;
}

void ResidualStream::begin_norm(kernels::Linear& product) {
  begun_ = nullptr;
  const bool can = expected_ != nullptr && squares_.data != nullptr && context_.alone() &&
                   context_.matmul.begins_norm(product);
  if (!can) return;
  product.begins = {.weighted = normed_, .squares = squares_};
  product.next_norm_weight = expected_->weight.view;
  begun_ = expected_;
}

ResidualStream::Target ResidualStream::target() {
  if (context_.alone()) return {sum_, sum_};
  NVLLM_CHECK(!pending_, "the part before has not been read");
  pending_ = true;
  return {part_, {}};
}

void ResidualStream::select(TensorView row_ids, TensorView sum, TensorView normed,
                            TensorView part) {
  kernels::embedding({.out = sum, .ids = row_ids, .table = sum_}, context_.stream);
  if (pending_) kernels::embedding({.out = part, .ids = row_ids, .table = part_}, context_.stream);
  sum_ = sum;
  normed_ = normed;
  part_ = part;
  begun_ = nullptr;
}

}  // namespace nvllm::layers
