// BoxClocks: times of ranks on other boxes (machines) as rank 0's own clock has them.
//
// now_ns() is one clock on each box, and tells nothing of another box's. So rank 0 asks all ranks
// what theirs show. A rank reads its clock some time between the question and the last answer, so
// what it says is right to within half of that time; of many questions the quickest one counts.
// Clocks also go at different speeds, by some millionths: between two comparisons, times are
// converted as if the difference had grown evenly.
//
//   BoxClocks clocks(me, caller);
//   clocks.compare();
//   clocks.to_ours(rank, {&times.started_ns, &times.loaded_ns});
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/clock.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"

namespace nvllm::runtime {

// What two clocks showed at the same time.
struct ClockReading {
  std::int64_t ours_ns = 0, theirs_ns = 0;
};

// A time of the other clock as ours has it, by an earlier and a later reading. Before the first and
// after the last one the difference is taken to be that of the reading.
std::int64_t our_time(const ClockReading& first, const ClockReading& last, std::int64_t theirs_ns);

// Used by rank 0's main thread. Where there is one box it does nothing.
class BoxClocks {
 public:
  // Every rank binds what rank 0 asks it.
  static void bind(ipc::Registry& methods);

  // Both must outlive it.
  BoxClocks(const ipc::Member& me, ipc::GroupCaller& caller)
      : group_(me.group()), caller_(caller) {}

  // Some dozens of calls of all ranks. The first comparison and the last one count.
  void compare();
  // Converts times of a rank's clock. After compare().
  void to_ours(int rank, std::initializer_list<std::int64_t*> times) const;
  // Converted times may be wrong by so much.
  Nanoseconds error() const { return error_; }

 private:
  const ipc::Group& group_;
  ipc::GroupCaller& caller_;
  std::vector<ClockReading> first_, last_;  // by rank
  Nanoseconds error_{0};                    // of the worse one of both comparisons
};

}  // namespace nvllm::runtime
