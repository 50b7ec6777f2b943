// The loader gives a rank's parameters their memory and fills it from a checkpoint.
//
//   const Buffer memory = bind_parameters(parameters, DType::bf16, backend);
//   const LoadReport report = load_parameters(parameters, checkpoint, backend, {});
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

struct ParameterBytes {
  std::uint64_t allocated = 0;  // by bind_parameters(): each parameter is aligned to 256 bytes
  std::uint64_t used = 0;       // the sum of the parameters' own bytes
};
ParameterBytes bytes_of(std::span<layers::Parameter* const> parameters, DType dtype);

// Allocates one Buffer ("weights") for all parameters and sets their views.
Buffer bind_parameters(std::span<layers::Parameter* const> parameters, DType dtype,
                       Backend& backend);

struct LoadProgress {
  std::uint64_t bytes = 0;  // of parameters filled so far
  std::uint64_t total = 0;
};

struct LoadOptions {
  int threads = 0;  // that read and convert; 0: depends on the machine
  // Bytes that are read, converted and copied as one; 0: depends on the device.
  std::size_t piece_bytes = 0;

  // Called by the thread that loads, about ten times a second and at the end. An exception that it
  // throws ends the load and is thrown by load_parameters().
  std::function<void(const LoadProgress&)> progress = {};

  // For tests: goes through pinned staging buffers also where the device's memory is the host's,
  // which is otherwise filled in place.
  bool staged = false;
};

struct LoadReport {
  std::uint64_t bytes_read = 0;    // from files
  std::uint64_t bytes_loaded = 0;  // of parameters
  double seconds = 0;
};

// Reads exactly the slices that the parameters name; reading, conversion and copies to the device
// overlap. Every tensor is looked up and checked before the first is read. When the function
// returns, the parameters are ready for work on any stream.
LoadReport load_parameters(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, Backend& backend,
                           const LoadOptions& options);

// Fills the parameters with reproducible random values instead (--load-format dummy): the same for
// a given seed at every number of ranks, on every device. Norm weights are about 1, everything else
// about 0 with the given standard deviation. Tensors of one name have the same values. `progress`
// is called by the caller's thread after each parameter.
LoadReport load_dummy(std::span<layers::Parameter* const> parameters, Backend& backend,
                      float standard_deviation, std::uint64_t seed,
                      const std::function<void(const LoadProgress&)>& progress = {});

// A hash of the parameter's elements as they are on the device, and of its name and shape.
std::uint64_t checksum(const layers::Parameter& parameter, Backend& backend);

}  // namespace nvllm::model
