// DecodeGraphs: the captured graphs of a runner's decode steps. A step of one row per sequence is
// padded to one of few sizes and runs as a graph. The first step of each size runs uncaptured, so
// that everything kernels need (loaded code, a choice of algorithm) exists when the second one is
// captured.
//
// A capture costs one or two milliseconds, mostly hidden behind the device's previous step; so
// graphs are captured on demand, and startup does not wait for them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "device/backend.h"

namespace nvllm::runtime {

class DecodeGraphs {
 public:
  // The key of a graph.
  struct Kind {
    std::int64_t sequences = 0;
    std::int64_t max_kv_length = 0;
    // Whether the graph samples, and with which kernels (layers::SampleStep).
    bool samples = false, penalties = false, top_k_top_p = false;
    std::uint64_t cache_graph_key = 0;  // kvcache::StepPlan; graphs with another key than the
                                        // newest are destroyed
    auto operator<=>(const Kind&) const = default;
  };

  DecodeGraphs(Backend& backend, std::int64_t max_sequences, std::int64_t max_length)
      : backend_(backend),
        max_sequences_(max_sequences),
        max_length_(max_length),
        max_graphs_(max_graphs(max_sequences, max_length)) {}

  // The kind of a step of `sequences` sequences, the longest of `longest` tokens, without sampling.
  Kind kind_of(std::int64_t sequences, std::int64_t longest) const;

  // Enqueues `work`, which depends on nothing but the kind and device memory. Once there are
  // max_graphs() graphs, no more are captured.
  void run(const Kind& kind, Stream& stream, const std::function<void()>& work);

  std::int64_t captured() const { return captured_; }

  // Maximum number of graphs: each size and length with two kinds of sampling.
  static std::int64_t max_graphs(std::int64_t max_sequences, std::int64_t max_length);

 private:
  Backend& backend_;
  const std::int64_t max_sequences_, max_length_, max_graphs_;
  std::int64_t captured_ = 0;
  std::uint64_t cache_graph_key_ = 0;
  std::map<Kind, std::unique_ptr<Graph>> graphs_;  // nullptr: has run once, uncaptured
};

// The size to which a decode step is padded: 1, 2, 4, 8, then multiples of 8, from 64 on multiples
// of 16, and at most max_sequences.
std::int64_t padded_sequences(std::int64_t sequences, std::int64_t max_sequences);

}  // namespace nvllm::runtime
