#include "runtime/box_clocks.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace nvllm::runtime {
namespace {

constexpr int kQuestions = 64;

}  // namespace

std::int64_t our_time(const ClockReading& first, const ClockReading& last, std::int64_t theirs_ns) {
  const std::int64_t ahead = first.theirs_ns - first.ours_ns;
  const std::int64_t between = last.theirs_ns - first.theirs_ns;
  const std::int64_t since = std::clamp<std::int64_t>(theirs_ns - first.theirs_ns, 0, between);
  if (since == 0) return theirs_ns - ahead;
  const std::int64_t gained = last.theirs_ns - last.ours_ns - ahead;
  const double share = static_cast<double>(since) / static_cast<double>(between);
  return theirs_ns - ahead - static_cast<std::int64_t>(share * static_cast<double>(gained));
}

void BoxClocks::bind(ipc::Registry& methods) {
  methods.bind("clock", [] { return now_ns(); });
}

void BoxClocks::compare() {
  if (group_.boxes() == 1) return;
  std::int64_t shortest = 0;
  std::vector<ClockReading> readings;
  for (int i = 0; i < kQuestions; ++i) {
    const std::int64_t sent_ns = now_ns();
    const auto shown = caller_.call<std::int64_t>("clock");
    const std::int64_t took = now_ns() - sent_ns;
    if (i > 0 && took >= shortest) continue;
    shortest = took;
    readings.clear();
    for (const std::int64_t theirs : shown) readings.push_back({sent_ns + took / 2, theirs});
  }
  error_ = std::max(error_, Nanoseconds(shortest - shortest / 2));
  if (first_.empty()) first_ = readings;
  last_ = std::move(readings);
}

void BoxClocks::to_ours(int rank, std::initializer_list<std::int64_t*> times) const {
  if (group_.is_here(rank)) return;
  NVLLM_CHECK(!last_.empty(), "times of rank ", rank, " before compare()");
  const auto index = static_cast<std::size_t>(rank);
  for (std::int64_t* time : times) *time = our_time(first_[index], last_[index], *time);
}

}  // namespace nvllm::runtime
