// HostAttention: attention over blocks in host memory, computed by the host's cores while other
// blocks are loaded to the device. The cores read memory several times faster than the link.
//
//   host.plan(blocks, rows);                      // per step; a graph of the step repeats the plan
//   for each layer:
//     host.launch(layer, args, written, stream);  // args: the layer's attention, queries computed
//     ... enqueue other parts of the layer's attention ...
//     parts.combine(args, stream, host.result(stream));
//
// It has its own stream, on which the queries are copied to the host and a host call computes with
// a pool of threads. The results stay in pinned memory, where the device's combine kernel reads
// them: they are a few KB, and a copy would queue after the large loads.
//
//   stream       queries -> queries ready;   ...      wait: results ready -> combine
//   own stream   wait: queries ready, the blocks' write-outs -> copy queries -> attention
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/cpu/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/host_attention.h"
#include "kvcache/chunked/load_ring.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// Not thread-safe; uses one stream.
class HostAttention {
 public:
  struct Limits {
    BlockShape shape;
    std::int64_t heads = 0;           // this rank's query heads
    std::int64_t sequences = 0;       // per step
    int threads = 0;                  // 0: one per core that the process may run on
    DType query_dtype = DType::bf16;  // with an E4m3 cache; otherwise the cache's type

    DType queries() const { return shape.dtype == DType::u8 ? query_dtype : shape.dtype; }
  };

  // Ledger: "host attention" (pinned). `hooks` must outlive it.
  HostAttention(Backend& backend, const Limits& limits, const OffloadHooks& hooks);
  // Waits for all enqueued work.
  ~HostAttention();
  HostAttention(const HostAttention&) = delete;
  HostAttention& operator=(const HostAttention&) = delete;

  // The whole blocks, laid out as in HostBlocks and sorted by row, that rows [0, rows) of the next
  // passes attend to. Empty: the next passes do not use host attention.
  void plan(std::vector<kernels::HostAttentionBlock> blocks, std::int64_t rows);
  bool planned() const { return plan_ != nullptr; }

  // For an E4m3 cache; call before the first launch().
  void set_scales(const KvScales& scales) { scales_ = scales; }

  // written: an event after which the blocks' contents are valid; nullptr: they already are.
  void launch(std::int64_t layer, const kernels::Attention& args, const Event* written,
              Stream& stream);
  // The result for rows [0, rows). Work of `stream` may read it until the next launch().
  kernels::CombineAttention::Part result(Stream& stream);

  // Bytes of keys and values per second, with both running concurrently.
  struct Speeds {
    double cores = 0;  // through attention
    double link = 0;   // to the device
    // The cores' share for which both finish at the same time.
    double share() const { return cores / (cores + link); }
  };
  // Repeatedly attends to these parts of blocks (pinned memory with any content) while they are
  // copied to `device`, which holds one part. Takes about 20 ms at the speed of a usual link.
  Speeds measure(std::span<const unsigned char* const> parts, void* device);

 private:
  // Shared with the host calls, which a graph may repeat.
  struct Plan {
    std::vector<kernels::HostAttentionBlock> blocks;
    std::int64_t rows;
  };

  kernels::HostAttention attention(std::int64_t rows) const;
  void take_queries(const TensorView& q, TensorView* taken);

  Backend& backend_;
  const Limits limits_;
  const OffloadHooks& hooks_;
  KvScales scales_;
  const std::int64_t part_bytes_;
  // Rows of queries with at most this stride, in elements, are copied at once, including the gaps.
  const std::int64_t max_row_stride_;
  Buffer queries_, out_, lse_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> queries_ready_, results_ready_;
  std::shared_ptr<const Plan> plan_;
  // Only used by the host calls, which never overlap.
  nvllm::cpu::ThreadPool pool_;
  std::vector<float> scratch_;
};

// Selects the blocks of a step's reads that the host's cores read: those that minimize max(taken /
// share, loaded / (1 - share)), starting with the last block. readers: how many rows read each
// block; 0: the cores cannot. The cores read a block once per row, while the device loads it once
// for all rows, so blocks with several readers are selected last. `taken` receives one element per
// block.
void choose_for_host(std::span<const std::int32_t> readers, double share, std::vector<bool>& taken);

}  // namespace nvllm::kvcache
