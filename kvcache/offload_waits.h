// OffloadWait: every wait of one stream for another in chunked offload, by name, so that each has one place
// in the code, and a test can leave one out to see that it is missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "device/backend.h"

namespace nvllm::kvcache {

enum class OffloadWait : std::uint8_t {
  load_of_slot,       // a load waits until what was in its ring slot has been read
  attention_of_load,  // attention to a ring slot waits for its load
  write_of_store,     // a block's write-out waits until its rows have been stored
  load_of_write,  // the load of a block waits for its write-out, and in a slot for that of what was there
  store_of_write,  // rows are stored in a slot after what was in it has been written out
  loads_of_graph,  // loads of a step on its own wait for the end of a graph, which loads, too

  queries_of_host,  // the host's cores wait until a layer's queries are there
  host_of_write,    // and until the blocks that they read have been written out
  merge_of_host,    // results are merged when the cores are done
};
inline constexpr std::size_t kOffloadWaits = 6;        // of loads and write-outs
inline constexpr std::size_t kHostAttentionWaits = 3;  // and of the host's cores, behind them

enum class Transfer : std::uint8_t { to_device, to_host, by_host };

// For tests; the default changes nothing.
struct OffloadHooks {
  std::function<void(Transfer)>
      before_copy;  // runs in the order of a copy stream, before each copy, or call of the host's cores
  std::uint32_t left_out = 0;  // bits of OffloadWait

  void wait(OffloadWait which, Stream& stream, const Event& event) const {
    if ((left_out >> static_cast<unsigned>(which) & 1u) == 0) stream.wait(event);
  }
  void delay(Transfer what, Stream& stream) const {
    if (before_copy) stream.host_call([call = before_copy, what] { call(what); });
  }
};

}  // namespace nvllm::kvcache
