// GEMM autotuning: for which sizes of steps GEMM configurations are measured, and a pass of such a
// size that needs no sequences. GemmTuningCache keeps what was measured from one run to the next.
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

// A step's rows, and whose logits it wants: all of them, as steps that decode, or the first's.
struct TunedSize {
  std::int64_t rows = 0;
  bool decodes = true;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(rows, decodes);
  }
  bool operator==(const TunedSize&) const = default;
};

// Every size that decode steps are padded to but the smallest ones; and for prompts rows_at_once,
// the rows that a layer takes at once, and the powers of two below. Largest first: what was
// measured for the largest of several sizes that are about the same is used for all.
std::vector<TunedSize> tuned_sizes(std::int64_t max_num_seqs, std::int64_t rows_at_once);

// Measures the GEMMs of a step of this size whose configurations are not known
// (kernels::Gemm::tune). Nothing is stored in any KV cache. A collective call.
void tune_gemms(const TunedSize& size, const model::Decoder& decoder, model::DecoderMemory& memory,
                const model::Device& device, Backend& backend);

// What one rank knows.
struct GemmTuningReport {
  std::uint64_t known = 0;               // configurations of earlier runs that may hold here
  kernels::GemmConfigurations measured;  // in this one
  std::string problem;                   // with the file of earlier runs; empty: none

  template <class Archive>
  void serialize(Archive& archive) {
    archive(known, measured, problem);
  }
};

// The GEMM configurations that autotuning has chosen (kernels::GemmConfigurations), for all devices
// and models, in one text file:
//
//   nvllm GEMM tuning, version 1
//   key: device, shape and types of a GEMM <tab> configuration
//
// The file is replaced as a whole, so readers always see a whole one; a lock beside it serializes
// writers. Used by any number of threads and processes at a time.
class GemmTuningCache {
 public:
  // The path of a file that need not be there, nor its folder.
  explicit GemmTuningCache(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  struct Contents {
    kernels::GemmConfigurations configurations;
    std::string problem;  // one line for people; empty: there is none
  };
  // Skips lines that cannot be parsed, and a file of another format: `problem` says so. A file that
  // is not there has none, which is no problem; but if there is one of the name that earlier
  // versions used, that one is read.
  Contents read() const;

  // Adds configurations, or replaces those of the same keys; lines that read() skips are dropped.
  // An Error if it cannot be written; then it is as it was.
  void add(const kernels::GemmConfigurations& configurations) const;

 private:
  void replace(const std::string& text) const;

  std::string path_;
};

}  // namespace nvllm::runtime
