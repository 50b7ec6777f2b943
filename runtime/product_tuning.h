// Which sizes of steps products are tuned for, and a pass of such a size that needs no sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/linear.h"
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

// Every size that decode steps are padded to but the smallest, and, for prompts, powers of two up to the most
// rows that a layer takes at once, and these. Largest first: what was measured for the largest of several sizes
// that are about the same is used for all.
std::vector<TunedSize> tuned_sizes(std::int64_t max_num_seqs, std::int64_t rows_at_once);

// Measures the products of a step of this size, as far as they are not known (kernels::Matmul::tune). Nothing
// is stored in any cache. A collective call.
void tune_products(const TunedSize& size, const model::Decoder& decoder,
                   model::DecoderMemory& memory, const model::Device& device, Backend& backend);

// Of one rank.
struct ProductReport {
  std::uint64_t known = 0;           // choices of earlier runs that may hold here
  kernels::ProductChoices measured;  // in this one
  std::string problem;               // with the file of earlier runs; empty: there is none

  template <class Archive>
  void serialize(Archive& archive) {
    archive(known, measured, problem);
  }
};

}  // namespace nvllm::runtime
