#include "ipc/testing/bench_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "base/error.h"
#include "ipc/ring.h"

namespace nvllm::ipc {
namespace {

// One processor of each core that this process may use.
std::vector<int> find_cores() {
  cpu_set_t allowed;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream siblings(
        str("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    int first = cpu;
    siblings >> first;
    if (first == cpu || !CPU_ISSET(first, &allowed)) cores.push_back(cpu);
  }
  return cores;
}

// The time of the last reader's stamp for message number `count`.
std::int64_t last_stamp(const std::vector<Stamp*>& stamps, std::uint64_t count) {
  std::int64_t last = 0;
  for (const Stamp* stamp : stamps) {
    for (int spins = 0; stamp->messages.load(std::memory_order_acquire) < count; ++spins) {
      cpu_relax();
      if (spins % 64 == 63) sched_yield();
    }
    last = std::max(last, stamp->time_ns.load(std::memory_order_relaxed));
  }
  return last;
}

}  // namespace

void pin(std::size_t index, std::size_t count) {
  static const std::vector<int> cores = find_cores();
  if (cores.size() < count) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[index], &set);
  sched_setaffinity(0, sizeof(set), &set);
}

Children::~Children() {
  for (const pid_t pid : pids_) kill(pid, SIGKILL);
  for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
}

void Children::start(const std::function<void()>& body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail_errno("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) body();
    _exit(0);
  }
  pids_.push_back(pid);
}

Nanoseconds Children::cpu_time() const {
  Nanoseconds sum{0};
  for (const pid_t pid : pids_) {
    clockid_t clock{};
    timespec used{};
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) continue;
    sum += std::chrono::seconds(used.tv_sec) + Nanoseconds(used.tv_nsec);
  }
  return sum;
}

std::vector<Stamp*> stamps_in(const Member& member, int readers) {
  std::vector<Stamp*> stamps;
  for (int rank = 1; rank <= readers; ++rank) {
    stamps.push_back(reinterpret_cast<Stamp*>(member.staging(rank).data()));
  }
  return stamps;
}

void read_all(Bytes message) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 8 <= message.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, message.data() + at, 8);
    sum += word;
  }
  benchmark::DoNotOptimize(sum);
}

void Latencies::report(benchmark::State& state) {
  if (samples_.empty()) return;
  std::sort(samples_.begin(), samples_.end());
  state.counters["p50_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
}

double Latencies::at(double quantile) const {
  const auto index = static_cast<std::size_t>(quantile * static_cast<double>(samples_.size() - 1));
  return static_cast<double>(samples_[index]) * 1e-3;
}

void measure(benchmark::State& state, const std::vector<Stamp*>& stamps, Nanoseconds pause,
             const std::function<void()>& send) {
  constexpr int kWarmUp = 100;
  Latencies latencies;
  std::uint64_t sent = 0;
  const auto one = [&] {
    if (pause > Nanoseconds(0)) {
      timespec time{0, pause.count()};
      nanosleep(&time, nullptr);
    }
    const std::int64_t start = now_ns();
    send();
    return last_stamp(stamps, ++sent) - start;
  };
  for (int i = 0; i < kWarmUp; ++i) one();
  for (auto _ : state) {
    const std::int64_t latency = one();
    latencies.add(latency);
    state.SetIterationTime(static_cast<double>(latency) * 1e-9);
  }
  latencies.report(state);
}

void measure_calls(benchmark::State& state, int readers, Nanoseconds spin, Nanoseconds pause,
                   const std::function<void(RingWriter&)>& send) {
  const Affinity affinity;
  const Group group = Group::create({.size = readers + 1});
  const auto processes = static_cast<std::size_t>(readers + 1);
  Children children;
  for (int rank = 1; rank <= readers; ++rank) {
    children.start([&] {
      pin(static_cast<std::size_t>(rank), processes);
      Member me = group.join(rank);
      RingReader reader(me, calls_ring(me));
      auto* stamp = reinterpret_cast<Stamp*>(me.staging(rank).data());
      while (true) {
        read_all(reader.receive_idle(spin));
        stamp->publish();
      }
    });
  }
  pin(0, processes);
  Member me = group.join(0);
  RingWriter writer(me, calls_ring(me));
  measure(state, stamps_in(me, readers), pause, [&] { send(writer); });
}

}  // namespace nvllm::ipc
