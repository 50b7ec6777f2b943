#include "runtime/runner/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/math.h"

namespace nvllm::runtime {
namespace {

// With few sequences, attention splits a sequence over more multiprocessors the longer it may be.
// Short sequences have graphs of their own, so that they do not pay for combining many splits.
// (kernels/attention/sm80/attention.cu: the number of splits grows up to 2,048 tokens, and is one
// if sequences times KV heads fill the GPU.)
constexpr std::int64_t kShort = 1024, kFewSequences = 64;

}  // namespace

std::int64_t padded_sequences(std::int64_t sequences, std::int64_t max_sequences) {
  std::int64_t padded = round_up(sequences, sequences > 64 ? 16 : 8);
  if (sequences < 8) {
    padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(sequences)));
  }
  return std::min(padded, max_sequences);
}

DecodeGraphs::Kind DecodeGraphs::kind_of(std::int64_t sequences, std::int64_t longest) const {
  const std::int64_t padded = padded_sequences(sequences, max_sequences_);
  const bool is_short = padded <= kFewSequences && longest <= kShort;
  return {.sequences = padded,
          .max_kv_length = is_short ? std::min(kShort, max_length_) : max_length_};
}

void DecodeGraphs::run(const Kind& kind, Stream& stream, const std::function<void()>& work) {
  if (std::exchange(cache_graph_key_, kind.cache_graph_key) != kind.cache_graph_key) {
    graphs_.clear();
    captured_ = 0;
  }
  const auto [found, first] = graphs_.try_emplace(kind);
  std::unique_ptr<Graph>& graph = found->second;
  if (graph == nullptr && (first || captured_ == max_graphs_)) return work();
  if (graph == nullptr) {
    graph = backend_.capture(stream, work);
    ++captured_;
  }
  graph->launch(stream);
}

std::int64_t DecodeGraphs::max_graphs(std::int64_t max_sequences, std::int64_t max_length) {
  std::int64_t kinds = 0, last = 0;
  for (std::int64_t sequences = 1; sequences <= max_sequences; ++sequences) {
    const std::int64_t padded = padded_sequences(sequences, max_sequences);
    if (std::exchange(last, padded) == padded) continue;
    kinds += padded <= kFewSequences && max_length > kShort ? 2 : 1;
  }
  return 2 * kinds;
}

}  // namespace nvllm::runtime
