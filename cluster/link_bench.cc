// Latency of a message from one box to the other, without the rings around it:
//
//   mpirun -n 2 [--host ...] --bind-to none link_bench
//
// Box 0 prints a line of JSON: microseconds of 4 KiB, one way, with 8 bytes back. Both boxes must
// share a clock, as namespaces of one machine do.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cluster/box_link.h"
#include "cluster/task.h"

namespace {

using namespace nvllm;

constexpr std::size_t kBytes = 4096;
constexpr int kWarmUp = 1000, kMessages = 20'000;

// Sends and waits for the answer, or the other way round.
void run(cluster::BoxLink& link, int box) {
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + kMessages; ++i) {
    std::int64_t arrived_ns = 0;
    const auto wait = [&] {
      while (!link.receive([&](int, cluster::BoxLink::Bytes message) {
        arrived_ns = now_ns();
        std::int64_t sent_ns = 0;
        std::memcpy(&sent_ns, message.data(), sizeof sent_ns);
        // The reply carries the message's latency.
        if (box == 1) {
          arrived_ns -= sent_ns;
        } else if (i >= kWarmUp) {
          times.push_back(static_cast<double>(sent_ns) * 1e-3);
        }
      })) {
        link.sending();
      }
    };
    const std::int64_t stamp = now_ns();
    if (box == 1) wait();
    std::vector<std::byte> message(box == 0 ? kBytes : sizeof stamp);
    std::memcpy(message.data(), box == 0 ? &stamp : &arrived_ns, sizeof stamp);
    link.send(1 - box, std::move(message));
    if (box == 0) wait();
  }
  while (link.sending() > 0) continue;
  if (box == 1) return;
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("{\"bytes\": %zu, \"one_way_p50_us\": %.2f, \"one_way_p99_us\": %.2f}\n", kBytes,
              at(0.5), at(0.99));
}

}  // namespace

int main() {
  try {
    const cluster::Task task = cluster::find_task();
    if (task.boxes != 2) fail("start it with mpirun -n 2, one task on each box");
    cluster::BoxLink link(cluster::Mpi::load(), task.box, task.boxes);
    run(link, task.box);
    link.leave();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "link_bench: %s\n", error.what());
    return 1;
  }
}
