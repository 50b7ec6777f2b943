// The control plane's speed. The figures to look at are the counters p50_us and p99_us: a message's
// latency runs from before it is sent until the last reader has read all its bytes.
//
//   bazel run //ipc:ipc_bench -- --benchmark_format=json
#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/interprocess/sync/interprocess_semaphore.hpp>
#include <csignal>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/channels.h"
#include "ipc/group.h"
#include "ipc/group_caller.h"
#include "ipc/heartbeat.h"
#include "ipc/segment.h"

namespace nvllm::ipc {
namespace {

constexpr int kReaders = 3;
constexpr std::size_t kControlBytes = 4096;
constexpr Nanoseconds kForEver = std::chrono::hours(1);

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

// The calling process keeps to the place-th core, if each of `places` processes can have its own.
void pin(std::size_t place, std::size_t places) {
  static const std::vector<int> cores = find_cores();
  if (cores.size() < places) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[place], &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Lets this process run anywhere again when it goes.
class Affinity {
 public:
  Affinity() { sched_getaffinity(0, sizeof(before_), &before_); }
  ~Affinity() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

// Child processes; killed and reaped at the end.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  void start(const std::function<void()>& body) {
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
  // Processor time that all of them have used.
  Nanoseconds cpu_time() const {
    Nanoseconds sum{0};
    for (const pid_t pid : pids_) {
      clockid_t clock{};
      timespec used{};
      if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) continue;
      sum += std::chrono::seconds(used.tv_sec) + Nanoseconds(used.tv_nsec);
    }
    return sum;
  }

 private:
  std::vector<pid_t> pids_;
};

// What a reader publishes once it has read a whole message.
struct alignas(64) Stamp {
  std::atomic<std::uint64_t> messages;
  std::atomic<std::int64_t> time_ns;

  void publish() {
    time_ns.store(now_ns(), std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_release);
  }
};

// Reads every byte.
void read_all(Bytes message) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 8 <= message.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, message.data() + at, 8);
    sum += word;
  }
  benchmark::DoNotOptimize(sum);
}

class Latencies {
 public:
  void add(std::int64_t ns) { samples_.push_back(ns); }
  void report(benchmark::State& state) {
    if (samples_.empty()) return;
    std::sort(samples_.begin(), samples_.end());
    state.counters["p50_us"] = at(0.5);
    state.counters["p99_us"] = at(0.99);
  }

 private:
  double at(double quantile) const {
    const auto index =
        static_cast<std::size_t>(quantile * static_cast<double>(samples_.size() - 1));
    return static_cast<double>(samples_[index]) * 1e-3;
  }
  std::vector<std::int64_t> samples_;
};

// The time of the last reader's stamp for message number `count`.
std::int64_t last_stamp(const std::vector<Stamp*>& stamps, std::uint64_t count) {
  std::int64_t last = 0;
  for (const Stamp* stamp : stamps) {
    for (int turn = 0; stamp->messages.load(std::memory_order_acquire) < count; ++turn) {
      cpu_relax();
      if (turn % 64 == 63) sched_yield();
    }
    last = std::max(last, stamp->time_ns.load(std::memory_order_relaxed));
  }
  return last;
}

// Sends one message per iteration and measures until the last reader's stamp. `pause` before each
// lets the readers fall asleep.
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

std::vector<Stamp*> stamps_in(const Member& member, int readers) {
  std::vector<Stamp*> stamps;
  for (int rank = 1; rank <= readers; ++rank) {
    stamps.push_back(reinterpret_cast<Stamp*>(member.staging(rank).data()));
  }
  return stamps;
}

// Rank 0 is this process; ranks 1.. read the calls ring.
void broadcast(benchmark::State& state, int readers, std::size_t bytes, Nanoseconds spin,
               Nanoseconds pause) {
  const Affinity affinity;
  const Group group = Group::create({.size = readers + 1});
  const auto places = static_cast<std::size_t>(readers + 1);
  Children children;
  for (int rank = 1; rank <= readers; ++rank) {
    children.start([&] {
      pin(static_cast<std::size_t>(rank), places);
      Member me = group.join(rank);
      RingReader reader(me, calls_ring(me));
      auto* stamp = reinterpret_cast<Stamp*>(me.staging(rank).data());
      while (true) {
        read_all(reader.receive_idle(spin));
        stamp->publish();
      }
    });
  }
  pin(0, places);
  Member me = group.join(0);
  RingWriter writer(me, calls_ring(me));
  const std::vector<std::byte> message(bytes, std::byte{1});
  measure(state, stamps_in(me, readers), pause, [&] { writer.send(Bytes(message)); });
}

void BM_BroadcastSpinning(benchmark::State& state) {
  broadcast(state, static_cast<int>(state.range(0)), kControlBytes, kForEver, Nanoseconds(0));
}
BENCHMARK(BM_BroadcastSpinning)
    ->ArgName("readers")
    ->Arg(1)
    ->Arg(3)
    ->Iterations(20'000)
    ->UseManualTime();

void BM_BroadcastAsleep(benchmark::State& state) {
  broadcast(state, static_cast<int>(state.range(0)), kControlBytes, Nanoseconds(0),
            std::chrono::milliseconds(1));
}
BENCHMARK(BM_BroadcastAsleep)
    ->ArgName("readers")
    ->Arg(1)
    ->Arg(3)
    ->Iterations(1000)
    ->UseManualTime();

// What the system alone needs to wake as many sleeping processes: one semaphore each and no message. The
// floor of BM_BroadcastAsleep.
void BM_SemaphoreAsleep(benchmark::State& state) {
  namespace bip = boost::interprocess;
  const Affinity affinity;
  const int readers = static_cast<int>(state.range(0));
  const auto places = static_cast<std::size_t>(readers + 1);
  const Group group = Group::create({.size = readers + 1});  // for the stamps
  Member me = group.join(0);
  const std::vector<Stamp*> stamps = stamps_in(me, readers);
  std::vector<bip::interprocess_semaphore*> semaphores;
  for (Stamp* stamp : stamps) semaphores.push_back(new (stamp + 1) bip::interprocess_semaphore(0));
  Children children;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    children.start([&] {
      pin(i + 1, places);
      while (true) {
        semaphores[i]->wait();
        stamps[i]->publish();
      }
    });
  }
  pin(0, places);
  measure(state, stamps, std::chrono::milliseconds(1), [&] {
    for (auto* semaphore : semaphores) semaphore->post();
  });
}
BENCHMARK(BM_SemaphoreAsleep)
    ->ArgName("readers")
    ->Arg(1)
    ->Arg(3)
    ->Iterations(1000)
    ->UseManualTime();

// The same message through one boost::interprocess::message_queue per reader. Its readers block, as
// it is meant to be used, or poll, as ours do.
void BM_MessageQueue(benchmark::State& state) {
  namespace bip = boost::interprocess;
  const bool poll = state.range(1) != 0;
  const Affinity affinity;
  const auto readers = static_cast<std::size_t>(state.range(0));
  const Group group = Group::create({.size = static_cast<int>(readers) + 1});  // for the stamps
  Member me = group.join(0);
  const std::vector<Stamp*> stamps = stamps_in(me, static_cast<int>(readers));
  std::vector<std::unique_ptr<bip::message_queue>> queues;
  for (std::size_t i = 0; i < readers; ++i) {
    const std::string name = random_name();
    queues.push_back(std::make_unique<bip::message_queue>(bip::create_only, name.c_str(), 32,
                                                          kControlBytes, bip::permissions(0600)));
    bip::message_queue::remove(name.c_str());
  }
  Children children;
  for (std::size_t i = 0; i < readers; ++i) {
    children.start([&] {
      pin(i + 1, readers + 1);
      std::vector<std::byte> buffer(kControlBytes);
      bip::message_queue::size_type size = 0;
      unsigned priority = 0;
      while (true) {
        if (poll) {
          for (int turn = 0; !queues[i]->try_receive(buffer.data(), buffer.size(), size, priority);
               ++turn) {
            cpu_relax();
            if (turn % 64 == 63) sched_yield();
          }
        } else {
          queues[i]->receive(buffer.data(), buffer.size(), size, priority);
        }
        read_all(Bytes(buffer).first(size));
        stamps[i]->publish();
      }
    });
  }
  pin(0, readers + 1);
  const std::vector<std::byte> message(kControlBytes, std::byte{1});
  measure(state, stamps, Nanoseconds(0), [&] {
    for (const auto& queue : queues) queue->send(message.data(), message.size(), 0);
  });
}
BENCHMARK(BM_MessageQueue)
    ->ArgNames({"readers", "poll"})
    ->Args({1, 0})
    ->Args({3, 0})
    ->Args({1, 1})
    ->Args({3, 1})
    ->Iterations(5'000)
    ->UseManualTime();

void BM_RingBandwidth(benchmark::State& state) {
  broadcast(state, static_cast<int>(state.range(0)), std::size_t{1} << 20, kForEver,
            Nanoseconds(0));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) << 20);
}
BENCHMARK(BM_RingBandwidth)->ArgName("readers")->Arg(1)->Arg(3)->Iterations(500)->UseManualTime();

// A typed call on all ranks and all their replies.
void BM_Call(benchmark::State& state) {
  const Affinity affinity;
  const int size = static_cast<int>(state.range(0));
  const Group group = Group::create({.size = size});
  Registry registry;
  registry.bind("echo", [](const std::vector<std::int32_t>& tokens) { return tokens; });
  Children children;
  for (int rank = 1; rank < size; ++rank) {
    children.start([&] {
      pin(static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
      Member me = group.join(rank);
      GroupServer(me, registry).serve();
    });
  }
  pin(0, static_cast<std::size_t>(size));
  Member me = group.join(0);
  GroupCaller caller(me, registry);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(state.range(1)), 7);
  Latencies latencies;
  for (int i = 0; i < 100; ++i) caller.call<std::vector<std::int32_t>>("echo", tokens);
  for (auto _ : state) {
    const std::int64_t start = now_ns();
    benchmark::DoNotOptimize(caller.call<std::vector<std::int32_t>>("echo", tokens));
    latencies.add(now_ns() - start);
  }
  latencies.report(state);
}
BENCHMARK(BM_Call)
    ->ArgNames({"ranks", "tokens"})
    ->Args({1, 16})
    ->Args({2, 16})
    ->Args({4, 16})
    ->Args({4, 1024})
    ->Iterations(10'000)
    ->UseRealTime();

void BM_GroupCreate(benchmark::State& state) {
  const GroupOptions options{.size = static_cast<int>(state.range(0))};
  for (auto _ : state) benchmark::DoNotOptimize(Group::create(options));
  state.counters["mebibytes"] = static_cast<double>(Group::bytes_needed(options)) / (1 << 20);
}
BENCHMARK(BM_GroupCreate)->ArgName("ranks")->Arg(2)->Arg(8)->Unit(benchmark::kMillisecond);

// What four servers with nothing to do, heartbeats included, take of one core.
void BM_IdleGroup(benchmark::State& state) {
  constexpr int kSize = 5;
  const Group group = Group::create({.size = kSize});
  Children children;
  for (int rank = 1; rank < kSize; ++rank) {
    children.start([&group, rank] {
      Member me = group.join(rank);
      const Heartbeat heartbeat(me);
      const Registry registry;
      GroupServer(me, registry).serve();
    });
  }
  usleep(200'000);
  double idle_percent = 0;
  for (auto _ : state) {
    const Nanoseconds before = children.cpu_time();
    const std::int64_t start = now_ns();
    sleep(2);
    const Nanoseconds used = children.cpu_time() - before;
    idle_percent =
        100.0 * static_cast<double>(used.count()) / static_cast<double>(now_ns() - start);
  }
  state.counters["percent_of_a_core"] = idle_percent;
}
BENCHMARK(BM_IdleGroup)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace
}  // namespace nvllm::ipc
