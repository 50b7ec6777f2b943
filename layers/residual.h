// ResidualStream: the sum that runs through a decoder, to which every attention and MLP adds its part,
// and from which each reads through a norm.
//
//   attention.qkv.forward(qkv, stream.input(norm), context);
//   attention.out.add_to(stream, {.x = heads}, context);
//
// One rank: a product adds itself to the sum, and the norm is left to the product that reads it, or begun by the
// one that makes the sum (kernels::BegunNorm), if that can and knows by which weight. Several ranks: a product
// leaves this rank's part; when the sum is next read, one collective sums the parts over the ranks, adds them and
// applies the norm. Layers need not know which.
#pragma once

#include "layers/context.h"
#include "layers/norm.h"

namespace nvllm::layers {

class ResidualStream {
 public:
  // Three dense tensors [rows, hidden] of one type. sum: the same on all ranks; normed: its norm; part:
  // what this rank adds next (not used with one rank). squares: of begun norms; no data: none is begun.
  ResidualStream(TensorView sum, TensorView normed, TensorView part, const Context& context,
                 TensorView squares = {})
      : sum_(sum), normed_(normed), part_(part), squares_(squares), context_(context) {}

  std::int64_t rows() const { return sum_.shape[0]; }
  DType dtype() const { return sum_.dtype; }

  // What a column-parallel product reads.
  Input input(const RmsNorm& norm);

  // Where a row-parallel product goes: out = residual + product.
  struct Target {
    TensorView out;
    TensorView residual;
  };
  Target target();

  // Which norm the sum is read through after the next addition; nullptr: not known.
  void expect(const RmsNorm* norm) { expected_ = norm; }
  // Lets the product that makes the sum begin that norm, if it can.
  void begin_norm(kernels::Linear& product);

  // Goes on with these rows (int32, any number, in any order), in new memory.
  void select(TensorView row_ids, TensorView sum, TensorView normed, TensorView part);

  // For observers: the sum, and its norm, as they are now. Neither changes any later result, but that a norm that
  // was begun is taken whole after normed(). (The sum may have to go through a collective that norms it, too: by
  // `next`, any norm.)
  TensorView sum(const RmsNorm& next);
  TensorView normed(const RmsNorm& norm);

 private:
  // Sums the pending parts; whether normed_ holds the norm of the sum then.
  bool settle(const RmsNorm& norm);

  TensorView sum_, normed_, part_, squares_;
  const Context& context_;
  const RmsNorm* expected_ = nullptr;
  const RmsNorm* begun_ = nullptr;  // of the sum as it is, in normed_ and squares_
  bool pending_ = false;            // part_ waits to be summed over the ranks and added
};

}  // namespace nvllm::layers
