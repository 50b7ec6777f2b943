// Checks of the arguments of collectives, which all implementations of Communicator share.
#pragma once

#include <string>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::ipc {

// Context of a call: rank `rank` of `size`, on streams of `device`.
struct CallSite {
  int rank = 0;
  int size = 1;
  DeviceKind device = DeviceKind::cpu;
};

// Each throws an Error that names the operation, the argument and what it should have been.
void check_all_reduce(const CallSite& site, const TensorView& data, const Stream& stream);
void check_reduce_scatter(const CallSite& site, const TensorView& out, const TensorView& in,
                          const Stream& stream);
void check_all_gather(const CallSite& site, const TensorView& out, const TensorView& in,
                      const Stream& stream);
void check_gather(const CallSite& site, const TensorView& out, const TensorView& in, int root,
                  const Stream& stream);
void check_broadcast(const CallSite& site, const TensorView& data, int root, const Stream& stream);
void check_barrier(const CallSite& site, const Stream& stream);
// Checks before anything is sent, including the requirements of kernels::rms_norm, and that rows
// which are multiples of 16 bytes start at such multiples: if each rank decided by its own
// addresses, ranks could choose different algorithms and deadlock.
void check_all_reduce_rms_norm(const CallSite& site, const kernels::RmsNorm& args,
                               const Stream& stream);

// "all_reduce 4096 float32": the text in a rank's record while the collective runs.
std::string describe_call(const char* operation, const TensorView& tensor);

}  // namespace nvllm::ipc
