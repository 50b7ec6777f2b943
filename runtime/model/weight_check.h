// Finds weights that are no numbers. A checkpoint that was damaged, or quantized badly, makes every
// logit NaN; then nobody knows where that came from. Weights are looked at when this has happened,
// not while they load: loading goes at the speed of the files.
#pragma once

#include <optional>
#include <string>

#include "device/backend.h"
#include "ipc/rpc.h"
#include "layers/parameter.h"

namespace nvllm::runtime {

// "model.norm.weight holds NaN at [7]", with the name and the place of the checkpoint's tensor:
// about the first element of the parameter that is NaN or infinite. Waits for the device.
std::optional<std::string> weight_fault(const layers::Parameter& parameter, Backend& backend);

// Rank 0's side: the first fault of any rank; empty: all weights of all ranks are finite. All ranks
// have bound their ModelRank. One call for each parameter: one for all would take longer than a
// step may.
std::string find_weight_fault(ipc::GroupCaller& caller);

// What a rank answers about one of its parameters.
struct WeightFault {
  bool there = false;  // it has such a parameter
  std::string text;    // empty: it is fine

  template <class Archive>
  void serialize(Archive& archive) {
    archive(there, text);
  }
};

}  // namespace nvllm::runtime
