// Finds NaN and infinity in weights. A checkpoint that was damaged, or quantized badly, makes every
// logit NaN without a hint at the cause. Weights are checked after that has happened, not while
// they load: loading runs at the speed of the files.
#pragma once

#include <optional>
#include <string>

#include "device/backend.h"
#include "ipc/rpc.h"
#include "layers/parameter.h"

namespace nvllm::runtime {

// Describes the first element of the parameter that is NaN or infinite, by name and index of the
// checkpoint's tensor: "model.norm.weight holds NaN at [7]". Waits for the device.
std::optional<std::string> weight_fault(const layers::Parameter& parameter, Backend& backend);

// Rank 0's side: the first fault on any rank; empty: all weights are finite. All ranks have bound
// their ModelRank. Each parameter is one call: a single call for all would exceed the step timeout.
std::string find_weight_fault(ipc::GroupCaller& caller);

// A rank's reply about one of its parameters.
struct WeightFault {
  bool there = false;  // the rank has such a parameter
  std::string text;    // empty: no fault

  template <class Archive>
  void serialize(Archive& archive) {
    archive(there, text);
  }
};

}  // namespace nvllm::runtime
