// The communicators of GPUs: peer and nccl. Each rank is a process that sees one GPU.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include "base/clock.h"
#include "device/topology.h"
#include "ipc/collective/peer/peer_communicator.h"
#include "ipc/collective/testing/suite.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using testing::RankProcesses;
using testing::run_ranks;

TestSetup on_gpus(const std::string& implementation) {
  return {DeviceKind::cuda, implementation, implementation == "peer"};
}

// Call before a rank uses CUDA. If there are fewer GPUs than ranks, ranks share them.
void take_gpu(const Member& me, const std::vector<std::string>& gpus) {
  setenv("CUDA_VISIBLE_DEVICES", gpus[static_cast<std::size_t>(me.rank()) % gpus.size()].c_str(),
         1);
}

constexpr CallLimits kSmall{.elements = 20'000};

// Fused two-shot, with rows of any length, up to `max_elements` elements: more than an area holds.
void fused_in_two_trips(Rig& rig, std::uint64_t seed, std::int64_t max_elements) {
  auto* const peer = dynamic_cast<PeerCommunicator*>(rig.comm.get());
  if (peer == nullptr) return;
  peer->force(Algorithm::two_shot);
  suite::fused_rows(rig, seed, 40'000);
  suite::fused_rows(rig, seed + 100, std::min<std::int64_t>(max_elements, 600'000));
  suite::single_calls(rig, seed, 4, {.elements = max_elements, .only_fused = 4096});
  for (const std::int64_t columns : {4096, 1000}) {
    suite::back_to_back(rig, seed, 5, 100, {.elements = 20 * columns, .only_fused = columns});
    suite::in_a_graph(rig, seed, 10, 30, {.elements = 20 * columns, .only_fused = columns});
  }
  // Several rows for each block.
  suite::in_a_graph(rig, seed, 3, 4, {.elements = 1000 * 1000, .only_fused = 1000});
  peer->force({});
}

// The tests for every implementation. Starting the processes takes longer than most of them, so one
// group runs them all, in this order.
struct Check {
  const char* name;
  void (*run)(Rig& rig, std::uint64_t seed);
};
constexpr Check kChecks[] = {
    {"every operation, type, size and alignment gives the plain result",
     [](Rig& rig, std::uint64_t seed) { suite::single_calls(rig, seed, 200, kSmall); }},
    {"rows of all lengths, fused",
     [](Rig& rig, std::uint64_t seed) {
       suite::fused_rows(rig, seed, 40'000);
       suite::fused_rows(rig, seed, 600'000);
     }},
    {"rows of all lengths, fused, in two trips",
     [](Rig& rig, std::uint64_t seed) { fused_in_two_trips(rig, seed, 12'000'000); }},
    {"overlapped sums have the bits of the fused ones",
     [](Rig& rig, std::uint64_t seed) {
       suite::overlapped_rows(rig, seed, 20'000, 4);
       suite::overlapped_rows(rig, seed + 1, 1'000'000, 2);
     }},
    {"large tensors",
     [](Rig& rig, std::uint64_t seed) {
       suite::single_calls(rig, seed, 5, {.elements = 6'000'000});
     }},
    {"thousands of calls back to back, with ranks that come late",
     [](Rig& rig, std::uint64_t seed) {
       const int batches = rig.setup.implementation == "nccl" ? 5 : 25;
       suite::back_to_back(rig, seed, batches, 220, {.elements = 3000});
     }},
    {"a captured graph can be replayed among other calls",
     [](Rig& rig, std::uint64_t seed) {
       suite::in_a_graph(rig, seed, 20, 30, kSmall);
       suite::in_a_graph(rig, seed + 7, 5, 10, {.elements = 500'000, .only_reduce = true});
     }},
    {"two streams in turn",
     [](Rig& rig, std::uint64_t seed) { suite::on_two_streams(rig, seed, kSmall); }},
    {"the same bits on all ranks and in every run",
     [](Rig& rig, std::uint64_t seed) {
       for (std::int64_t elements : {1001, 100'003, 1'000'001}) {
         suite::same_bits(rig, seed, elements);
       }
     }},
    {"wrong arguments are refused",
     [](Rig& rig, std::uint64_t) { suite::refuses_wrong_arguments(rig); }},
    // Must be last: it leaves the group aborted.
    {"abort() ends the collectives of all ranks with its reason",
     [](Rig& rig, std::uint64_t) {
       if (rig.comm->size() > 1) suite::ends_when_aborted(rig);
     }},
};

// On 1, 2 and 4 GPUs, as far as available.
void passes_all_checks(const std::string& implementation) {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  const std::uint64_t seed = fresh_seed();
  for (int ranks : {1, 2, 4}) {
    if (ranks > static_cast<int>(gpus.size())) continue;
    MESSAGE(implementation, " on ", ranks, " GPUs");
    run_ranks(ranks, [&](Member& me) {
      take_gpu(me, gpus);
      Rig rig(me, on_gpus(implementation));
      for (const Check& check : kChecks) {
        try {
          check.run(rig, seed);
        } catch (...) {
          FAIL_CHECK("the check was: " << std::string(check.name));
          throw;
        }
      }
    });
  }
}

enum class Sum { plain, fused, overlapped };
constexpr const char* kSumNames[] = {"plain", "fused", "overlapped"};

// Runs a collective repeatedly: all_reduce, the fused two-shot, or the fused one in three calls.
// before(call) runs before each.
void reduce_for_ever(Rig& rig, Sum sum, const std::function<void(int)>& before) {
  constexpr std::int64_t kRows = 8, kColumns = 1024;
  const std::size_t bytes = (2 * kRows + 1) * kColumns * sizeof(float);
  const Buffer memory = rig.backend->allocate(MemoryKind::device, bytes, "test");
  rig.backend->fill(memory.data(), 0, bytes, *rig.stream);
  const TensorView data(memory.data(), DType::f32, {kRows, kColumns});
  const TensorView residual(data.as<float>() + kRows * kColumns, DType::f32, {kRows, kColumns});
  const TensorView weight(data.as<float>() + 2 * kRows * kColumns, DType::f32, {kColumns});
  if (sum == Sum::fused) dynamic_cast<PeerCommunicator&>(*rig.comm).force(Algorithm::two_shot);
  if (sum == Sum::overlapped) REQUIRE(rig.comm->open_overlap(kRows, kColumns, DType::f32));
  const kernels::RmsNorm args{.out = data, .x = data, .residual = {}, .weight = weight};
  for (int call = 0;; ++call) {
    before(call);
    if (sum == Sum::plain) rig.comm->all_reduce(data, *rig.stream);
    if (sum == Sum::fused) rig.comm->all_reduce_rms_norm(args, *rig.stream);
    if (sum == Sum::overlapped) {
      kernels::RmsNorm with_residual = args;
      with_residual.residual = residual;
      rig.comm->begin_reduce_scatter({}, data, *rig.stream);
      rig.comm->begin_all_gather({}, with_residual, Gathered::norm, *rig.stream);
      rig.comm->finish_all_gather({}, *rig.stream);
    }
    rig.comm->wait(*rig.stream);
  }
}

}  // namespace

TEST_CASE("gpu: peer keeps what a communicator promises") {
  passes_all_checks("peer");
}

TEST_CASE("gpu: nccl keeps what a communicator promises") {
  passes_all_checks("nccl");
}

TEST_CASE("gpu: peer memory is what is taken where there is some") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  run_ranks(2, [&](Member& me) {
    take_gpu(me, gpus);
    CHECK(Rig(me, on_gpus("auto")).comm->name() == "peer");
  });
}

TEST_CASE("gpu: an unknown implementation is refused") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  run_ranks(1, [&](Member& me) {
    take_gpu(me, gpus);
    CHECK_THROWS_WITH_AS(Rig(me, on_gpus("shm")),
                         doctest::Contains("use auto, peer, nccl or two-level"), Error);
  });
}

TEST_CASE("gpu: peer between two processes that share a GPU") {
  // Slow, since ranks take turns on the GPU, but it needs only one, so memory checkers can run it.
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  const std::uint64_t seed = fresh_seed();
  run_ranks(2, [&](Member& me) {
    take_gpu(me, {gpus[0]});
    Rig rig(me, on_gpus("peer"));
    suite::single_calls(rig, seed, 40, kSmall);
    suite::fused_rows(rig, seed, 20'000);
    fused_in_two_trips(rig, seed, 200'000);
    suite::in_a_graph(rig, seed, 2, 10, {.elements = 3000});
    suite::overlapped_rows(rig, seed, 20'000, 3);
  });
}

TEST_CASE("gpu: a rank that never comes is named by the deadline on the device") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  const int ranks = gpus.size() >= 4 ? 4 : 2;
  struct Case {
    std::string implementation;
    Sum sum;
  };
  for (const Case& each : {Case{"peer", Sum::plain}, Case{"peer", Sum::fused},
                           Case{"peer", Sum::overlapped}, Case{"nccl", Sum::plain}}) {
    if (gpus.size() < 2 && each.implementation != "peer") continue;
    MESSAGE(str(each.implementation, ", ", kSumNames[static_cast<int>(each.sum)]));
    GroupOptions options;
    options.step_timeout = std::chrono::seconds(2);
    RankProcesses processes(
        ranks,
        [&](Member& me) {
          take_gpu(me, gpus);
          Rig rig(me, on_gpus(each.implementation));
          reduce_for_ever(rig, each.sum, [&](int call) {
            if (me.rank() == 1 && call == 10) raise(SIGSTOP);
          });
        },
        options);
    const std::int64_t start = now_ns();
    while (!processes.group().aborted() && seconds_since(start) < 60) usleep(1000);
    processes.signal(1, SIGKILL);
    const auto ends = processes.wait_all();
    for (const auto& end : ends) {
      if (end.rank == 1) continue;
      INFO(end.describe());
      CHECK(!end.hung);
      CHECK(end.report.find("rank 1 (pid") != std::string::npos);
    }
  }
}

TEST_CASE("gpu: a killed rank ends the others' collective once the group is aborted") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.size() < 2) SKIP_TEST(str("needs 2 GPUs, found ", gpus.size()));
  for (const char* name : {"peer", "nccl"}) {
    MESSAGE(std::string(name));
    RankProcesses processes(2, [&](Member& me) {
      take_gpu(me, gpus);
      Rig rig(me, on_gpus(name));
      reduce_for_ever(rig, Sum::plain, [&](int call) {
        if (me.rank() == 1 && call == 100) raise(SIGKILL);
      });
    });
    const auto ends = processes.wait_all(true);
    INFO(ends[0].describe());
    CHECK(!ends[0].hung);
    CHECK(ends[0].report.find("rank 1") != std::string::npos);
    CHECK(ends[0].report.find("SIGKILL") != std::string::npos);
  }
}

}  // namespace nvllm::ipc
