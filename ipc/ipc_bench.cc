// Latency of the control plane. The relevant figures are the counters p50_us and p99_us: a
// message's latency, from before it is sent until the last reader has read all its bytes.
//
//   bazel run //ipc:ipc_bench -- --benchmark_format=json
#include <benchmark/benchmark.h>
#include <sched.h>
#include <unistd.h>

#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/interprocess/sync/interprocess_semaphore.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/group.h"
#include "ipc/ring.h"
#include "ipc/rpc.h"
#include "ipc/segment.h"
#include "ipc/testing/bench_processes.h"

namespace nvllm::ipc {
namespace {

constexpr std::size_t kControlBytes = 4096;

void broadcast(benchmark::State& state, int readers, std::size_t bytes, Nanoseconds spin,
               Nanoseconds pause) {
  const std::vector<std::byte> message(bytes, std::byte{1});
  measure_calls(state, readers, spin, pause,
                [&](RingWriter& writer) { writer.send(Bytes(message)); });
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

// The time in which the system alone wakes as many sleeping processes: one semaphore each and no
// message. A lower bound for BM_BroadcastAsleep.
void BM_SemaphoreAsleep(benchmark::State& state) {
  namespace bip = boost::interprocess;
  const Affinity affinity;
  const int readers = static_cast<int>(state.range(0));
  const auto processes = static_cast<std::size_t>(readers + 1);
  const Group group = Group::create({.size = readers + 1});  // for the stamps
  Member me = group.join(0);
  const std::vector<Stamp*> stamps = stamps_in(me, readers);
  std::vector<bip::interprocess_semaphore*> semaphores;
  for (Stamp* stamp : stamps) semaphores.push_back(new (stamp + 1) bip::interprocess_semaphore(0));
  Children children;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    children.start([&] {
      pin(i + 1, processes);
      while (true) {
        semaphores[i]->wait();
        stamps[i]->publish();
      }
    });
  }
  pin(0, processes);
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
// intended by Boost, or poll, as ours do.
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
    const std::string name = new_name();
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
          for (int spins = 0; !queues[i]->try_receive(buffer.data(), buffer.size(), size, priority);
               ++spins) {
            cpu_relax();
            if (spins % 64 == 63) sched_yield();
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

// The load of one core by four idle servers, including heartbeats.
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
