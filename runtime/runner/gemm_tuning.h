// GEMM autotuning: the step sizes for which GEMM configurations are measured, and a forward pass of
// such a size that needs no sequences. GemmTuningCache stores the measurements between runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"
#include "model/decoder.h"

namespace nvllm::runtime {

// A step's rows, and which logits it computes: those of all rows, as in decode, or of the first.
struct TunedSize {
  std::int64_t rows = 0;
  bool decodes = true;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(rows, decodes);
  }
  bool operator==(const TunedSize&) const = default;
};

// Every size that decode steps are padded to, except the smallest; and for prefill rows_at_once
// (the rows that a layer processes at a time) and the powers of two below it. Largest first: of
// several sizes with about the same shape, the measurement for the largest is used.
std::vector<TunedSize> tuned_sizes(std::int64_t max_num_seqs, std::int64_t rows_at_once);

// Measures the GEMMs of a step of this size whose configurations are unknown (kernels::Gemm::tune).
// Nothing is stored in any KV cache. A collective call.
void tune_gemms(const TunedSize& size, const model::Decoder& decoder, model::DecoderMemory& memory,
                const model::ForwardResources& device, Backend& backend);

// One rank's GEMM configurations.
struct GemmTuningReport {
  std::uint64_t known = 0;               // configurations of earlier runs for this device
  kernels::GemmConfigurations measured;  // in this run
  std::string problem;                   // a problem with the file of earlier runs; empty: none

  template <class Archive>
  void serialize(Archive& archive) {
    archive(known, measured, problem);
  }
};

// The GEMM configurations chosen by autotuning (kernels::GemmConfigurations), for all devices and
// models, in one text file:
//
//   nvllm GEMM tuning, version 1
//   key: device, shape and types of a GEMM <tab> configuration
//
// The file is replaced atomically, so readers always see a complete one; a lock file beside it
// serializes writers. Thread-safe, also between processes.
class GemmTuningCache {
 public:
  // `path`: neither the file nor its folder needs to exist.
  explicit GemmTuningCache(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  struct Contents {
    kernels::GemmConfigurations configurations;
    std::string problem;  // one line for the user; empty: none
  };
  // Skips lines that cannot be parsed, and a file of another format; `problem` reports either. A
  // missing file is no problem; if a file with the name of earlier versions exists, that one is
  // read.
  Contents read() const;

  // Adds configurations, replacing those with the same keys; lines that read() skips are dropped.
  // Throws an Error if the file cannot be written; it is unchanged then.
  void add(const kernels::GemmConfigurations& configurations) const;

 private:
  void replace(const std::string& text) const;

  std::string path_;
};

}  // namespace nvllm::runtime
