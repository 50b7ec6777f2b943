// GatedDeltaNet: linear attention instead of a softmax attention block. Instead of the K/V of all
// tokens a sequence has a state of fixed size: one float32 matrix [dk, dv] per value head, and the
// last inputs of a short convolution.
//
// It is split over ranks by key heads, each with the value heads that read it; a rank may own no
// heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/linear.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "layers/residual_stream.h"

namespace nvllm::layers {

struct GatedDeltaNetConfig {
  // Modules of the input projections: `qkv` and `z`, or, if not empty, `qkvz` with all four; `b`
  // and `a`, or `ba`. In `qkvz` and `ba` the rows are grouped by key head.
  std::string qkv, z, b, a;
  std::string qkvz, ba;
  std::string output;                      // module
  std::string conv, a_log, dt_bias, norm;  // tensors
  std::int64_t hidden = 0;
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  // a multiple of key_heads
  std::int64_t dk = 0, dv = 0;   // head sizes of keys and values
  std::int64_t conv_width = 0;
  float epsilon = 1e-6f;  // of the norm of each value head's output
};

// The states of all sequences in one layer on one rank, by state slot.
struct DeltaNetState {
  TensorView conv;   // [slots, conv_width - 1, channels]
  TensorView heads;  // [slots, value heads, dk, dv], float32
};

class GatedDeltaNet {
 public:
  GatedDeltaNet(const std::string& name, const GatedDeltaNetConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);

  // Reads the stream through `norm`, adds to it, and updates the states of the batch's sequences.
  void forward(ResidualStream& stream, const RmsNorm& norm, const Batch& batch,
               const DeltaNetState& state, const Context& context) const;

  kernels::GemmWeight input_weight() const { return input_.weight(); }
  kernels::GemmWeight output_weight() const { return output_.weight(); }

  // Bytes of Context::scratch that a pass of `rows` rows takes.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

  // Bytes of the states of `slots` slots; and the views of those states in memory that is aligned
  // to Scratch::kAlignment.
  std::size_t state_bytes(std::int64_t slots, DType dtype) const;
  DeltaNetState state_in(Scratch& memory, std::int64_t slots, DType dtype) const;

 private:
  std::int64_t key_heads() const { return own_.size(); }  // of this rank
  std::int64_t value_heads() const { return own_.size() * group_; }
  std::int64_t qk_columns() const { return 2 * key_heads() * dk_; }
  std::int64_t channels() const { return qk_columns() + value_heads() * dv_; }

  std::vector<ColumnParallelLinear::Module> input_modules(const GatedDeltaNetConfig& config) const;
  void set_gates(const std::string& name, const GatedDeltaNetConfig& config);
  void set_conv(const std::string& name, const GatedDeltaNetConfig& config);
  Parameter head_parameter(const std::string& name, const std::string& tensor,
                           std::int64_t value_heads) const;
  TensorView chunks_for(const Batch& batch, DType dtype, const Context& context) const;

  Range own_;           // key heads
  std::int64_t group_;  // value heads per key head
  std::int64_t dk_, dv_;
  ColumnParallelLinear input_;  // q, k, v and z of this rank's heads
  Parameter gates_;             // [2 * value_heads(), hidden]: b, then a
  Parameter conv_;              // [channels(), conv_width]
  Parameter a_log_, dt_bias_;   // [value_heads()], float32
  RmsNorm norm_;                // [dv], float32
  RowParallelLinear output_;
};

}  // namespace nvllm::layers
