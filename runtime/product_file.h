// ProductFile: what tuning has chosen for products (kernels::ProductChoices), kept from one run to the next,
// for all devices and models in one file of text:
//
//   nvllm products, version 1
//   what the choice holds for <tab> the choice
//
// It is replaced as a whole, so readers always see a whole one; writers take turns by a lock beside it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/gemm/linear.h"

namespace nvllm::runtime {

// Used by any number of threads and processes at a time.
class ProductFile {
 public:
  // The path of a file that need not be there, nor its folder.
  explicit ProductFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  struct Contents {
    kernels::ProductChoices choices;
    std::string problem;  // one line for people; empty: there is none
  };
  // Lines that are none are left out, and so is a file that is none: `problem` says it. A file that is not
  // there has no choices, which is no problem.
  Contents read() const;

  // Adds choices, or replaces those for the same; what read() would leave out goes. An Error if it cannot be
  // written; then it is as it was.
  void add(const kernels::ProductChoices& choices) const;

 private:
  void replace(const std::string& text) const;

  std::string path_;
};

}  // namespace nvllm::runtime
