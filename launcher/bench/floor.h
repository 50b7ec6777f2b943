// Floor: the shortest time that work can take on a device (its roofline), from the model's
// configuration alone. It assumes that weights are read once per step, that every token reads the K
// and V of its context once, and that GEMMs and attention run at the device's speed. Only experts
// that some row has selected are read: as many as if the selection were random. Communication
// between ranks is not counted, so several ranks cannot reach their floor. Pipeline stages are
// assumed never to wait, to share all work evenly, and to read their weights once for each step in
// flight: for a token of every sequence as many times as there are stages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/dtype.h"
#include "model/config/config.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// The peak speeds of one device.
struct DeviceSpeed {
  double bytes_per_second = 0;  // memory bandwidth
  double flops_per_second = 0;  // of GEMMs
  double attention_flops_per_second = 0;
  double cache_bytes = 0;  // of the last-level cache; 0: unknown
  std::string source;      // where these numbers come from, for the user
};

// Bandwidth between a device and pinned host memory, for large copies in one direction at a time.
struct LinkSpeed {
  double to_device = 0, to_host = 0;  // bytes per second
  std::string source;                 // where these numbers come from, for the user
};

// The costs of a model on the rank with the most work. A "row" is one token that goes through the
// layers.
struct ModelCost {
  double layer_bytes = 0;      // weights of the layers, without experts
  double expert_bytes = 0;     // of all experts
  double expert_share = 0;     // the share of them that one row uses
  double head_bytes = 0;       // of the LM head's weights
  double kv_bytes = 0;         // K and V of one token
  double layer_flops = 0;      // GEMMs of one row with the layers' weights
  double head_flops = 0;       // GEMM of one row with the LM head's weights
  double attention_flops = 0;  // of one row, per context token
  double window = 0;           // attention window in tokens; 0: none
  double window_share = 0;     // share of layers with the window

  // Tokens that a row attends to, averaged over the layers, with a context of `context` tokens; and
  // the sum over all rows of a prompt of `tokens` tokens.
  double attended(double context) const;
  double attended_by_prompt(double tokens) const;
};
ModelCost cost_of(const model::ModelConfig& config, DType dtype, DType kv_dtype, int ranks);
// The cost of a pipeline, computed from that of the whole model on the ranks of one stage: all
// stages together read the weights once, one after the other, and share the rest.
ModelCost cost_in_stages(ModelCost cost, int stages);
// Counts the weights' bytes in their storage format: quantized ones take fewer than the
// configuration says.
void count_weights(ModelCost& cost, const runtime::ModelDescription& model);

// Whether the weights are read from memory at each step, as the floor assumes. If they fit in a
// cache they are read faster, and a share of the floor is meaningless.
bool floor_holds(const ModelCost& cost, const DeviceSpeed& speed);

// The work of one step.
struct StepWork {
  double rows = 0;
  double tokens = 0;  // tokens generated
  // Tokens that all rows attend to: the sum, averaged over the layers.
  double context = 0;
  // The part of `context` whose K and V are read from the KV cache; rows of one prompt share them.
  double read = 0;
};
double step_floor(const ModelCost& cost, const DeviceSpeed& speed, const StepWork& work);

// Seconds of a decode step of `batch` sequences with this context each.
double decode_floor(const ModelCost& cost, const DeviceSpeed& speed, double batch, double context);

// Seconds of the prefill of `prompts` prompts of `tokens` tokens each.
double prefill_floor(const ModelCost& cost, const DeviceSpeed& speed, double prompts,
                     double tokens);

// Seconds of a whole workload in its order, with at most `running` concurrent sequences: every
// prompt is computed once, and every running sequence generates a token per step.
struct SequenceLength {
  std::int64_t prompt = 0;
  std::int64_t output = 0;
};
double workload_floor(const ModelCost& cost, const DeviceSpeed& speed,
                      std::span<const SequenceLength> sequences, std::int64_t running);

}  // namespace nvllm::launcher
