// HostAttention: attention to blocks in host memory by the host's cores, while other blocks come to the device.
// The cores read memory several times faster than a link carries it.
//
//   host.plan(blocks, rows);                     // of a step; a graph of it goes on with what was planned
//   for each layer:
//     host.begin(layer, args, written, stream);  // args: the layer's attention; its queries are there
//     ... enqueue other parts of the layer's attention ...
//     sums.finish(args, stream, host.end(stream));
//
// On a stream of its own: the rows' queries to the host, a call of the host that attends with a crew of threads,
// and then the results lie in pinned memory, where the device's merge reads them. They are a few KB, which would
// wait behind the large loads if they were copied.
//
//   stream    queries -> asked;    ...      wait: attended -> merge
//   its own   wait: asked; wait: the blocks' write-outs -> copy of queries -> attention -> attended
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/cpu/crew.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/combine_attention.h"
#include "kernels/attention/host_attention.h"
#include "kvcache/offload_waits.h"
#include "kvcache/paged_storage.h"

namespace nvllm::kvcache {

// Used by one thread, with one stream.
class HostAttention {
 public:
  struct Limits {
    BlockShape shape;
    std::int64_t heads = 0;      // this rank's query heads
    std::int64_t sequences = 0;  // of a step
    int threads = 0;             // 0: one for each core that the process may run on
  };

  // Ledger: "host attention" (pinned). `hooks` outlives it.
  HostAttention(Backend& backend, const Limits& limits, const OffloadHooks& hooks);
  // When what it has enqueued has run.
  ~HostAttention();
  HostAttention(const HostAttention&) = delete;
  HostAttention& operator=(const HostAttention&) = delete;

  // Whole blocks, laid out as in HostBlocks and by ascending row, that rows [0, rows) of the next passes attend to.
  // None: the next passes do without.
  void plan(std::vector<kernels::HostAttentionBlock> blocks, std::int64_t rows);
  bool planned() const { return work_ != nullptr; }

  // written: what the blocks' contents wait for; nullptr: they have been there for long.
  void begin(std::int64_t layer, const kernels::Attention& args, const Event* written,
             Stream& stream);
  // What rows [0, rows) are given. Valid for work of `stream` until the next begin().
  kernels::CombineAttention::Part end(Stream& stream);

  // Bytes per second of keys and values, at once.
  struct Speeds {
    double cores = 0;  // through attention
    double link = 0;   // to the device
    // What the cores should have of everything, so that both are done at the same time.
    double share() const { return cores / (cores + link); }
  };
  // Reads those parts of blocks, pinned memory that is as good as any other, again and again while they are
  // copied to `device`, which has room for one. Takes some 20 ms at a link's usual speed.
  Speeds measure(std::span<const unsigned char* const> parts, void* device);

 private:
  // Of a graph as long as that may be launched.
  struct Work {
    std::vector<kernels::HostAttentionBlock> blocks;
    std::int64_t rows;
  };

  kernels::HostAttention attention(std::int64_t rows) const;
  void take_queries(const TensorView& q, TensorView* taken);

  Backend& backend_;
  const Limits limits_;
  const OffloadHooks& hooks_;
  const std::int64_t part_bytes_;
  const std::int64_t
      most_apart_;  // elements between rows of queries that are copied with what lies there
  Buffer queries_, out_, lse_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> asked_, attended_;
  std::shared_ptr<const Work> work_;
  // Of the calls, which come one after the other.
  nvllm::cpu::Crew crew_;
  std::vector<float> scratch_;
};

// Which of the blocks that a step reads the host's cores take: those that make max(taken / share, loaded /
// (1 - share)) least, from the last one on. readers: of each block, how many rows read it, which the cores do one
// by one, while the device loads it for all of them; so blocks with several readers are taken last. 0: the cores
// cannot take it. `taken` gets as many elements.
void choose_for_host(std::span<const std::int32_t> readers, double share, std::vector<bool>& taken);

}  // namespace nvllm::kvcache
