// HostTables: where the blocks of LayerGroups are, in the device's memory, for kernels that read them in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kvcache/layer_groups.h"

namespace nvllm::kvcache {

// Used by one thread.
class HostTables {
 public:
  // Uses the stream, and waits for it. Ledger: "kv cache layers" (device, pinned).
  HostTables(Backend& backend, std::int64_t layers, std::int64_t blocks, std::int64_t group_blocks,
             Stream& stream);

  // Of one block.
  static std::size_t device_bytes(std::int64_t layers);
  static std::size_t host_bytes(std::int64_t layers);

  // Enqueues the places of all groups that have come to be used since the last time.
  void follow(LayerGroups& groups, Stream& stream);

  // By block. Its place in a layer, int64: void until its group is used.
  TensorView addresses(std::int64_t layer) const;
  TensorView nowhere() const { return nowhere_; }      // int32: -1
  TensorView in_groups() const { return in_groups_; }  // int32: its number in its group

 private:
  void follow(const LayerGroups::Group& group, LayerGroups& groups, Stream& stream);

  Backend& backend_;
  const std::int64_t layers_, blocks_;
  Buffer memory_;  // addresses, [layer][block]; the other two
  Buffer staged_;  // addresses; each is written once, so no copy has to be waited for
  TensorView nowhere_, in_groups_;
  std::size_t followed_ = 0;  // of LayerGroups::used()
};

}  // namespace nvllm::kvcache
