// Floor: the least time that work takes on a device, from the model's configuration alone: weights are read
// once per step, every row reads the K and V of its context once, and products and attention run at the
// device's speed. What ranks tell each other costs nothing here, so on several of them no one gets there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/dtype.h"
#include "model/config/config.h"

namespace nvllm::launcher {

// What one device does at most.
struct DeviceSpeed {
  double bytes_per_second = 0;            // of reading
  double flops_per_second = 0;            // of products
  double attention_flops_per_second = 0;  // of attention
  std::string source;                     // where these come from, for people
};

// Of the rank that has most to do.
struct ModelCost {
  double layer_bytes = 0;      // of the layers' weights
  double head_bytes = 0;       // of the head's
  double kv_bytes = 0;         // of a token's K and V
  double layer_flops = 0;      // of a row's products with the layers' weights
  double head_flops = 0;       // and with the head's
  double attention_flops = 0;  // of a row, per token that it sees
};
ModelCost cost_of(const model::ModelConfig& config, DType dtype, int ranks);

// Of a step that gives `tokens` tokens; rows see `seen` tokens all in all, and of these `read` come from
// the cache (rows of one prompt share what they read).
struct StepWork {
  double rows = 0;
  double tokens = 0;
  double seen = 0;
  double read = 0;
};
double step_floor(const ModelCost& cost, const DeviceSpeed& speed, const StepWork& work);

// Seconds of a step of `batch` sequences with one row each at that context.
double decode_floor(const ModelCost& cost, const DeviceSpeed& speed, double batch, double context);

// Seconds until `prompts` prompts of so many tokens have given their first tokens.
double prompt_floor(const ModelCost& cost, const DeviceSpeed& speed, double prompts, double tokens);

// Seconds of a whole workload, of which at most `running` sequences are under way at a time, the first ones
// first: every prompt is computed once, and whatever runs gives a token per step.
struct SequenceLength {
  std::int64_t prompt = 0;
  std::int64_t output = 0;
};
double workload_floor(const ModelCost& cost, const DeviceSpeed& speed,
                      std::span<const SequenceLength> sequences, std::int64_t running);

}  // namespace nvllm::launcher
