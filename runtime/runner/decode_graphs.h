// DecodeGraphs: the captured steps of a runner. A step of one row per sequence is padded to one of
// few sizes and runs as a graph; a size's first step runs as it is, so that whatever a kernel needs
// to be there (loaded code, a choice of algorithm) is there when the second one is captured.
//
// A capture costs a millisecond or two, mostly while the device is at work on the step before; so
// it is done when a size comes, and a start does not wait for any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "device/backend.h"

namespace nvllm::runtime {

class DecodeGraphs {
 public:
  // What distinguishes a graph from others.
  struct Kind {
    std::int64_t sequences = 0;
    std::int64_t max_kv_length = 0;
    // Whether the graph samples, and with what (layers::SampleStep).
    bool samples = false, penalties = false, top_k_top_p = false;
    std::uint64_t cache_graph_key = 0;  // kvcache::StepPlan; graphs of any other but the newest go
    auto operator<=>(const Kind&) const = default;
  };

  DecodeGraphs(Backend& backend, std::int64_t max_sequences, std::int64_t max_length)
      : backend_(backend),
        max_sequences_(max_sequences),
        max_length_(max_length),
        max_graphs_(max_graphs(max_sequences, max_length)) {}

  // The kind for a step of so many sequences, the longest of so many tokens, that does not sample.
  Kind kind_of(std::int64_t sequences, std::int64_t longest) const;

  // Enqueues `work`, which depends on nothing but the kind and the device's memory. Once there are
  // max_graphs() graphs no other ones are captured.
  void run(const Kind& kind, Stream& stream, const std::function<void()>& work);

  std::int64_t captured() const { return captured_; }

  // How many graphs there may be: each size and length with two ways of sampling.
  static std::int64_t max_graphs(std::int64_t max_sequences, std::int64_t max_length);

 private:
  Backend& backend_;
  const std::int64_t max_sequences_, max_length_, max_graphs_;
  std::int64_t captured_ = 0;
  std::uint64_t cache_graph_key_ = 0;
  std::map<Kind, std::unique_ptr<Graph>> graphs_;  // nullptr: has run once
};

// The size that a decode step of so many sequences is padded to: 1, 2, 4, 8, then multiples of 8,
// from 64 on of 16, and never more than max_sequences.
std::int64_t padded_sequences(std::int64_t sequences, std::int64_t max_sequences);

}  // namespace nvllm::runtime
