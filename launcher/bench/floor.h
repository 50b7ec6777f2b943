// Floor: the shortest time that work can take on a device (its roofline), from the model's
// configuration alone. It assumes that weights are read once per step, that every token reads the K
// and V of its context once, and that GEMMs and attention run at the device's speed. Of a mixture's
// experts those are read that some row has chosen: as many as if every choice were by chance.
// Communication between ranks is not counted, so several ranks cannot reach their floor. Pipeline
// stages are assumed never to wait, to share all work evenly, and to read their weights for each of
// the steps in flight: as many times as there are stages for a token of every sequence.
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
  double cache_bytes = 0;  // of the processor's last cache; 0: unknown
  std::string source;      // where these come from, for people
};

// Bandwidth between a device and pinned host memory, for large copies in one direction at a time.
struct LinkSpeed {
  double to_device = 0, to_host = 0;  // bytes per second
  std::string source;                 // where these come from, for people
};

// The costs of a model on the rank that has most to do. "Row": one token that goes through the
// layers.
struct ModelCost {
  double layer_bytes = 0;      // of the layers' weights, but those of experts
  double expert_bytes = 0;     // of all experts
  double expert_share = 0;     // of them, what one row goes through
  double head_bytes = 0;       // of the LM head's weights
  double kv_bytes = 0;         // of a token's K and V
  double layer_flops = 0;      // of one row's GEMMs with the layers' weights
  double head_flops = 0;       // and with the LM head's
  double attention_flops = 0;  // of one row, per token of its context
  double window = 0;           // tokens; 0: no layer has one
  double window_share = 0;     // of the layers

  // What a row attends to, on average over the layers, of a context of so many tokens; and all rows
  // of a prompt of so many tokens, in sum.
  double attended(double context) const;
  double attended_by_prompt(double tokens) const;
};
ModelCost cost_of(const model::ModelConfig& config, DType dtype, DType kv_dtype, int ranks);
// The cost of a pipeline of so many stages, out of that of the whole model on the ranks of one: all
// stages together read the weights once, one after the other, and share the rest.
ModelCost cost_in_stages(ModelCost cost, int stages);
// Counts the weights with the bytes that they take as they are kept: quantized ones take fewer than
// the configuration says.
void count_weights(ModelCost& cost, const runtime::ModelDescription& model);

// Whether the weights come from memory at each step, as the floor assumes. If a cache holds them
// they come faster, and nothing can be said about a share of the floor.
bool floor_holds(const ModelCost& cost, const DeviceSpeed& speed);

// The work of one step.
struct StepWork {
  double rows = 0;
  double tokens = 0;  // that it generates
  // Tokens that all rows attend to, in sum, on average over the layers.
  double context = 0;
  // Of these, those whose K and V are read from the KV cache; rows of one prompt share them.
  double read = 0;
};
double step_floor(const ModelCost& cost, const DeviceSpeed& speed, const StepWork& work);

// Seconds of a decode step of `batch` sequences with that context each.
double decode_floor(const ModelCost& cost, const DeviceSpeed& speed, double batch, double context);

// Seconds of the prefill of `prompts` prompts of `tokens` tokens each.
double prefill_floor(const ModelCost& cost, const DeviceSpeed& speed, double prompts,
                     double tokens);

// Seconds of a whole workload in its order, with at most `running` sequences at a time: every
// prompt is computed once, and every running sequence generates a token per step.
struct SequenceLength {
  std::int64_t prompt = 0;
  std::int64_t output = 0;
};
double workload_floor(const ModelCost& cost, const DeviceSpeed& speed,
                      std::span<const SequenceLength> sequences, std::int64_t running);

}  // namespace nvllm::launcher
