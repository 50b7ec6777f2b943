// Loader: gives a rank's parameters their memory and fills it from a checkpoint.
//
//   const Buffer memory = bind_parameters(parameters, DType::bf16, backend);
//   const LoadReport report = load_parameters(parameters, checkpoint, backend, {});
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "layers/parameter.h"
#include "model/checkpoint.h"

namespace nvllm::model {

// The device memory that bind_parameters() takes, each parameter aligned to 256 bytes, and the sum of
// the parameters' own bytes.
struct ParameterBytes {
  std::uint64_t allocated = 0;
  std::uint64_t used = 0;
};
ParameterBytes bytes_of(std::span<layers::Parameter* const> parameters, DType dtype);

// One Buffer ("weights") for all; sets their views.
Buffer bind_parameters(std::span<layers::Parameter* const> parameters, DType dtype,
                       Backend& backend);

struct LoadProgress {
  std::uint64_t bytes = 0;  // of parameters filled so far
  std::uint64_t total = 0;
};

struct LoadOptions {
  int threads = 0;      // that read and convert; 0: chosen by the machine
  bool direct = false;  // tests only: through pageable host memory, one tensor after the other
  // Called by the loading thread a few times a second at most.
  std::function<void(const LoadProgress&)> progress;
};

struct LoadReport {
  std::uint64_t bytes_read = 0;    // from files
  std::uint64_t bytes_loaded = 0;  // of parameters
  double seconds = 0;
};

// Reads exactly the slices that the parameters name; reading, conversion and copies to the device
// overlap. When it returns the parameters are ready for work on any stream. Every tensor is looked up and
// checked before the first is read.
LoadReport load_parameters(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, Backend& backend,
                           const LoadOptions& options);

// Reproducible random values instead: the same for a given seed at every number of ranks, on every
// device. Norm weights are about 1, everything else about 0 with the given standard deviation.
LoadReport load_dummy(std::span<layers::Parameter* const> parameters, Backend& backend,
                      float standard_deviation, std::uint64_t seed);

// A hash of the parameter's elements as they are on the device, and of its name and shape.
std::uint64_t checksum(const layers::Parameter& parameter, Backend& backend);

}  // namespace nvllm::model
