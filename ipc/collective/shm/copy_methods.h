// How CPU ranks copy data through shared memory and sum it.
//
// No copy method is fastest everywhere. An all_reduce of 1 MiB between two cores of an AMD EPYC VM
// always takes 57 us with stores past the caches. With cached stores it takes 47 us in some minutes
// and 500 us in others, as if the host moved the two cores to different dies. Intel's cores read
// DRAM at 13 GB/s each. So the first calls of each kind and size try all methods, and the ranks
// agree on the fastest. No bit of a result depends on the method.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/dtype.h"

namespace nvllm::ipc {

// How cache lines are stored that another process will read.
enum class Stores {
  streamed,  // past the caches, to memory; needs no ownership of lines that the reader still has
  claimed,   // prefetches the lines for writing, and demotes them to the shared cache afterwards (a
             // hint)
  string,    // rep movsb: cached, and claims whole lines without reading them first
};

// Prefetches lines that another process wrote: this keeps more of them in flight than the hardware
// prefetcher does.
void fetch_ahead(const void* from, std::size_t bytes);

// Other processes may read `to` only after finish_copies().
void copy_for_others(void* to, const void* from, std::size_t bytes, Stores stores);
void finish_copies();

struct CopyMethod {
  Stores stores = Stores::streamed;
  std::size_t chunk_bytes = 0;  // maximum bytes of a sum that are written before others read them
  bool ahead = false;           // whether to call fetch_ahead()
  bool once = false;            // all_reduce only: every rank sums everything itself, in one step
};

// Trials of the copy methods for one kind of call. All ranks make the same calls, hence the same
// trials.
class CopyTrials {
 public:
  static constexpr std::size_t kMethods = 10;
  static constexpr int kTrials = 4;  // of each method; the shortest time counts
  // After this many calls the trials are repeated: a virtual machine's cores may move.
  static constexpr int kCallsPerChoice = 65536;

  // The method of the next call.
  const CopyMethod& method() const;
  bool trying() const { return calls_ < kTrials * static_cast<int>(kMethods); }
  // Records a call that took `ns` nanoseconds (used only while trying()). True after the last
  // trial: choose() must be called next.
  bool count(std::int64_t ns);
  // The shortest times of this rank.
  std::array<float, kMethods> times() const { return min_ns_; }
  // Chooses by the sums of all ranks' times, so that the choice is the same on all ranks.
  void choose(const std::array<float, kMethods>& sums);

 private:
  // The trials of a method are consecutive: the first one finds the cache lines as the previous
  // method left them.
  std::size_t trial() const { return static_cast<std::size_t>(calls_ / kTrials); }

  int calls_ = 0;
  std::size_t chosen_ = 0;
  std::array<float, kMethods> min_ns_{};
};

// --- Sums on the CPU, which define the results of all implementations ---

// to[i] = the sum over the sources of source[i]: in float32, in the order of the sources, rounded
// once. A zero sum is +0, never -0: the GPU's protocol cannot send -0 (peer_protocol.cuh), and all
// implementations must agree on every bit. `to` may be one of the sources. The bits of an element
// do not depend on its position in the tensor.
void sum_cpu(DType type, void* to, std::span<const void* const> sources, std::size_t elements);

}  // namespace nvllm::ipc
