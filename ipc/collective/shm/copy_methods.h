// How CPU ranks copy data through shared memory and sum it up.
//
// No copy method is the fastest everywhere. An all_reduce of 1 MiB between two cores of an AMD EPYC
// VM always takes 57 us with stores past the caches. With cached stores it takes 47 us in some
// minutes and 500 us in others, as if the host moved the two cores to different dies. Intel's cores
// read DRAM at 13 GB/s each. So the first calls of each kind and size try all methods, and the
// ranks agree on the fastest. No bit of a result depends on the method.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/dtype.h"

namespace nvllm::ipc {

// How lines are stored that another process will read.
enum class Stores {
  streamed,  // past the caches, to memory; needs no ownership of lines that the reader still has
  claimed,   // takes the lines ahead of the stores, hands them to the shared cache after (a hint)
  string,    // rep movsb: cached, and takes whole lines without reading them first
};

// Asks for lines that another process wrote, before they are read: more of them are under way at
// once than the processor itself asks for.
void fetch_ahead(const void* from, std::size_t bytes);

// Others may look at `to` only after finish_copies().
void copy_for_others(void* to, const void* from, std::size_t bytes, Stores stores);
void finish_copies();

struct CopyMethod {
  Stores stores = Stores::streamed;
  std::size_t chunk_bytes = 0;  // at most so many bytes of a sum are put before others take them
  bool ahead = false;           // with fetch_ahead()
  bool once = false;            // an all_reduce: every rank sums everything itself, in one step
};

// The trials of one kind of call. All ranks make the same calls, hence the same trials.
class CopyTrials {
 public:
  static constexpr std::size_t kMethods = 10;
  static constexpr int kTrials = 4;  // of each method; the shortest counts
  // After so many calls all is tried again: a virtual machine's cores move.
  static constexpr int kCallsPerChoice = 65536;

  // The method of the next call.
  const CopyMethod& method() const;
  bool trying() const { return calls_ < kTrials * static_cast<int>(kMethods); }
  // A call has been made, of `ns` nanoseconds (looked at while trying()). True after the last
  // trial: now choose() must follow.
  bool count(std::int64_t ns);
  // The shortest times of this rank.
  std::array<float, kMethods> times() const { return min_ns_; }
  // Takes the sums of all ranks' times: the same on all ranks, as the choice must be.
  void choose(const std::array<float, kMethods>& sums);

 private:
  // The same method several times in a row: the first finds the lines as the method before left
  // them.
  std::size_t trial() const { return static_cast<std::size_t>(calls_ / kTrials); }

  int calls_ = 0;
  std::size_t chosen_ = 0;
  std::array<float, kMethods> min_ns_{};
};

// --- Sums on the CPU, as every implementation defines them ---

// to[i] = the sum over the sources of source[i]: in float32, in the order of the sources, rounded
// once. A sum that is zero is +0, never -0: the GPU's protocol cannot carry -0 (peer_protocol.cuh),
// and all implementations shall agree to the bit. `to` may be one of the sources. The bits of an
// element do not depend on where in the tensor it lies.
void sum_cpu(DType type, void* to, std::span<const void* const> sources, std::size_t elements);

}  // namespace nvllm::ipc
