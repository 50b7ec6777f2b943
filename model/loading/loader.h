// The loader allocates a rank's parameters and fills them from a checkpoint.
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
  int threads = 0;  // threads that read and convert; 0: depends on the machine
  // Bytes that are read, converted and copied as a unit; 0: depends on the device.
  std::size_t piece_bytes = 0;

  // Called by the loading thread, about ten times a second and at the end. An exception that it
  // throws ends the load and is rethrown by load_parameters().
  std::function<void(const LoadProgress&)> progress = {};

  // For tests: uses pinned staging buffers even if device memory is host memory, which is otherwise
  // filled in place.
  bool staged = false;
};

struct LoadReport {
  std::uint64_t bytes_read = 0;    // from files
  std::uint64_t bytes_loaded = 0;  // of parameters
  double seconds = 0;
};

// Reads exactly the slices of the parameters; reading, conversion and copies to the device overlap.
// Every tensor is looked up and checked before the first is read. When the function returns, the
// parameters are ready for work on any stream.
LoadReport load_parameters(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, Backend& backend,
                           const LoadOptions& options);

// Fills the parameters with reproducible random values instead (--load-format dummy): the same for
// a given seed with any number of ranks, on every device. Norm weights are about 1, everything else
// about 0 with the given standard deviation. Tensors of the same name have the same values. The
// caller's thread calls `progress` after each parameter.
LoadReport load_dummy(std::span<layers::Parameter* const> parameters, Backend& backend,
                      float standard_deviation, std::uint64_t seed,
                      const std::function<void(const LoadProgress&)>& progress = {});

// A hash of the parameter's elements on the device, and of its name and shape.
std::uint64_t checksum(const layers::Parameter& parameter, Backend& backend);

}  // namespace nvllm::model
